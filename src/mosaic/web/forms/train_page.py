"""The Train form: an algorithm, an environment, and all settings of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import context, ui

from mosaic.contract.paths import check_run_id
from mosaic.contract.settings import parse_seeds
from mosaic.trainer.rpc.client import Run
from mosaic.web.context import Web
from mosaic.web.forms.again import Filled, fill_in
from mosaic.web.forms.command_line import setting, train_command
from mosaic.web.forms.environment import EnvironmentPicker
from mosaic.web.forms.fields import FormField
from mosaic.web.forms.fit import about, algorithm_for
from mosaic.web.forms.own_rows import LIMITS, TRAIN
from mosaic.web.forms.requests import TrainValues, train_requests
from mosaic.web.forms.rows import Row, schema_rows
from mosaic.web.forms.training import TrainingPage
from mosaic.web.layout import page_at

STEP = 2048


class SeedsRow(Row):
    """One seed, several, or none."""

    def read(self, given: Any) -> str:
        text = str(given or "").strip()
        if text:
            parse_seeds(text, "this field")
        return text


class TrainPage(TrainingPage):
    """The form at /train."""

    form = "train"
    title = "Train"
    lead = "Choose what to learn and start. The form begins with a smoke test of a few seconds on CartPole."
    verb = "Start training"
    seed_help = TRAIN["seeds"].help

    def __init__(self, web: Web, filled: Filled | None = None) -> None:
        super().__init__(web)
        self.filled = filled
        if filled is not None:
            self.kept = {**{name: _text(value) for name, value in filled.values.items()}}
            self.kept["other"] = "\n".join(setting(name, value) for name, value in filled.other.items())

    def begin_with(self, env_id: str) -> None:
        """Fill in the environment of another page's link, and an algorithm that can learn it."""
        if not env_id:
            return
        algo = algorithm_for(self.schema, env_id, str(self.kept.get("algo") or TRAIN["algo"].default))
        self.kept = {**self.kept, "env_id": env_id, "algo": algo}

    def draw_fields(self) -> None:
        with ui.card().classes("w-full gap-3"):
            ui.label("What to learn").classes("text-base font-medium")
            self._draw_algo()
            self.picker = EnvironmentPicker(self, self.kept.get("env_id"))
        with ui.card().classes("w-full gap-3"):
            ui.label("How long, and with which seed").classes("text-base font-medium")
            with ui.element("div").classes("grid w-full grid-cols-1 sm:grid-cols-2 gap-x-5 gap-y-2 items-start"):
                steps = FormField(TRAIN["total_timesteps"], self.kept.get("total_timesteps"), self.touched)
                steps.widget.props(f"type=number step={STEP} min=0")
                seeds = FormField(
                    SeedsRow(**{**vars(TRAIN["seeds"]), "help": self.seed_help}), self.kept.get("seeds"), self.touched
                )
                self.fields |= {"total_timesteps": steps, "seeds": seeds}
                self.draw_machine()
                dry = FormField(LIMITS["dry_run_only"], self.kept.get("dry_run_only"), self.touched)
                self.fields["dry_run_only"] = dry
        self.draw_params_place()
        self.draw_lane()
        self.draw_recording()
        self.draw_names()
        self.show_algo()

    def _draw_algo(self) -> None:
        names = list(self.schema)
        given = self.kept.get("algo") or TRAIN["algo"].default
        if given not in names:
            names.append(str(given))
        self.fields["algo"] = AlgoField(TRAIN["algo"], given, self.touched, names)
        self._about = ui.label("").classes("text-sm opacity-80 max-w-3xl").props('data-about="true"')

    def show_algo(self) -> None:
        """Draw the parts that depend on the chosen algorithm."""
        self._about.text = about(self.algo, self.entry)
        if self.filled is not None and self.filled.values.get("algo") == self.algo:
            rows = schema_rows(self.entry)
            given = {
                name: row.shown(self.filled.params[name]) for name, row in rows.items() if name in self.filled.params
            }
        else:
            given = self.memory.params(self.algo)
        self.draw_params(given)
        self.picker.refresh()

    def touched(self, field: FormField) -> None:
        if field.row.name == "algo":
            self.picker.follow(self.entry)
            self.show_algo()
        elif field.row.name == "env_id":
            self.picker.describe()
        super().touched(field)

    def values(self) -> TrainValues:
        return TrainValues(
            **{
                **self.tracked(),
                **self.read(["algo", "env_id", "total_timesteps", "seeds"]),
                "params": {**self._unknown_params(), **self.read_params()},
            }
        )

    def requests(self, values: Any) -> list[dict[str, Any]]:
        return train_requests(values)

    def command(self, values: Any) -> str:
        return train_command(values, schema_rows(self.entry))

    def _unknown_params(self) -> Mapping[str, Any]:
        """Return the parameters of a user's own script, which has no schema."""
        if self.entry or self.filled is None or self.filled.values.get("algo") != self.algo:
            return {}
        return self.filled.params


class AlgoField(FormField):
    """The algorithm: a searchable list that also accepts the path or module of a user's own."""

    def __init__(self, row: Row, value: Any, touched: Any, names: list[str]) -> None:
        self._names = names
        super().__init__(row, value, touched)

    def _draw(self, value: Any) -> Any:
        widget = ui.select(
            self._names,
            label=self.row.title,
            value=value,
            with_input=True,
            new_value_mode="add-unique",
            on_change=self._changed,
        )
        widget.props("outlined dense hide-bottom-space behavior=menu").classes("w-full sm:max-w-md")
        widget.props["hint"] = self.row.help
        with widget.add_slot("append"):
            self._reset = ui.element("span")
        return widget


async def find_filled(web: Web) -> Filled | None:
    """Return the content of the run that `?from=` names; None without it."""
    source = context.client.request.query_params.get("from", "")
    if not source:
        return None
    run: Run = await web.ask(lambda client: client.get_run(check_run_id(source)))
    return fill_in(run.payload, imported=run.imported)


def add(web: Web) -> None:
    """Register the page."""

    @page_at(web, "/train", "Train")
    async def train() -> None:
        page = TrainPage(web, await find_filled(web))
        page.begin_with(context.client.request.query_params.get("env", ""))
        await page.show()


def _text(value: Any) -> Any:
    return value if isinstance(value, bool) or value is None else str(value)
