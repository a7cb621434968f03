"""TrainingPage: the common part of the training forms: an algorithm's parameters, GPU, recording."""

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
        """Draw the container of the parameters, which are redrawn for another algorithm."""
        self._params_place = ui.column().classes("w-full gap-4")

    def draw_params(self, given: Mapping[str, Any], rows: Mapping[str, Row] | None = None) -> None:
        """Draw the algorithm's parameters under their headings, in a collapsible section each."""
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
        """Draw TensorBoard and W&B; W&B's own fields are visible while it is on."""
        with self.fold("Recording: TensorBoard and Weights & Biases", "insights"):
            self.add(draw_rows(TRACKING.values(), self.kept, self.touched))
            with ui.column().classes("w-full gap-2") as self._wandb_place:
                self.add(draw_rows(WANDB.values(), self.kept, self.touched))
        self._show_wandb()

    def draw_machine(self) -> None:
        """Draw GPU, executor, storage and resources."""
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
        """Return the values of training beyond those of every form."""
        return {**self.common(), **self.read([*MACHINE, *TRACKING, *WANDB])}

    def _param(self, name: str) -> Any:
        """Return a parameter's value; None if it is invalid."""
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
