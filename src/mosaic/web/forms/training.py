"""TrainingPage: what the forms that train have in common: an algorithm's parameters, GPU, recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from mosaic.contract.errors import ConfigError
from mosaic.web.forms.fields import FormField, draw_rows
from mosaic.web.forms.own_rows import MACHINE, TRACKING, WANDB
from mosaic.web.forms.page import JobPage
from mosaic.web.forms.rows import Row, by_section, schema_rows

ICONS = {"Hyper-parameters": "tune", "Saving and checkpoints": "save", "Environments and machine": "memory"}


class TrainingPage(JobPage):
    """A form with an algorithm's parameters."""

    def draw_params_place(self) -> None:
        """Where the parameters stand; they are drawn anew for another algorithm."""
        self._params_place = ui.column().classes("w-full gap-4")

    def draw_params(self, given: Mapping[str, Any], rows: Mapping[str, Row] | None = None) -> None:
        """The algorithm's parameters under their headings, a fold each."""
        rows = schema_rows(self.entry) if rows is None else rows
        self.params = {}
        self._params_place.clear()
        with self._params_place:
            for title, some in by_section(rows.values()).items():
                with self.fold(f"{title} ({len(some)})", ICONS[title]) as fold:
                    fields = draw_rows(some, given, self.touched)
                for field in fields.values():
                    field.expansion, field.other = fold, self._param
                self.params |= fields

    def draw_recording(self) -> None:
        """TensorBoard and W&B; W&B's own fields show while it is on."""
        with self.fold("Recording: TensorBoard and Weights & Biases", "insights"):
            self.add(draw_rows(TRACKING.values(), self.kept, self.touched))
            with ui.column().classes("w-full gap-2") as self._wandb_place:
                self.add(draw_rows(WANDB.values(), self.kept, self.touched))
        self._show_wandb()

    def draw_machine(self) -> None:
        """GPU, executor, storage and resources."""
        self.add({name: FormField(row, self.kept.get(name), self.touched) for name, row in MACHINE.items()})
        self.fields["resources"].widget.props("type=textarea autogrow")

    def touched(self, field: FormField) -> None:
        if field.row.name in ("track_wandb", "wandb_use_vpn_proxy"):
            self._show_wandb()
        for one in self.params.values():
            if one.row.limits is not None and one.row.limits.refers:
                one.look_again()
        super().touched(field)

    def tracked(self) -> dict[str, Any]:
        """What the values of training have beyond every form's."""
        return {**self.common(), **self.read([*MACHINE, *TRACKING, *WANDB])}

    def _param(self, name: str) -> Any:
        """A parameter's value, None where it cannot be read."""
        try:
            field = self.params.get(name) or self.fields[name]
            return field.row.read(field.value)
        except (KeyError, ConfigError):
            return None

    def _show_wandb(self) -> None:
        self._wandb_place.set_visibility(bool(self.fields["track_wandb"].value))
        proxied = bool(self.fields["wandb_use_vpn_proxy"].value)
        for name in ("wandb_http_proxy", "wandb_https_proxy"):
            self.fields[name].box.set_visibility(proxied)
