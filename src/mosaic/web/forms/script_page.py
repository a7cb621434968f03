"""The Script form: a bash script of phases as one run, and the base config of its phases."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from mosaic.contract.errors import ConfigError
from mosaic.contract.scripts import Script, list_scripts
from mosaic.web.context import Web
from mosaic.web.forms.command_line import train_command
from mosaic.web.forms.fields import FormField
from mosaic.web.forms.own_rows import LIMITS
from mosaic.web.forms.requests import ScriptValues, build_script_request
from mosaic.web.forms.rows import Row, schema_rows
from mosaic.web.forms.train_page import TrainPage
from mosaic.web.layout import page_at
from mosaic.web.words import number

# Users read scripts; a longer one was not written by hand.
MOST_SOURCE = 100_000


class ScriptPage(TrainPage):
    """The form at /script."""

    form = "script"
    title = "Run a script"
    lead = (
        "A bash script runs one phase after another as one run. It finds the base config below, with every parameter "
        "filled in, in MOSAIC_CONFIG_FILE. Put your own scripts into the folder scripts/ of the home."
    )
    verb = "Run the script"
    seed_help = "0 or empty draws one"

    def __init__(self, web: Web, scripts: list[Script]) -> None:
        super().__init__(web)
        self.scripts = {script_name(script, web): script for script in scripts}

    def draw_fields(self) -> None:
        with ui.card().classes("w-full gap-3"):
            ui.label("Script").classes("text-base font-medium")
            self._draw_scripts()
        super().draw_fields()
        self.fields["dry_run_only"].box.set_visibility(False)
        self.fields["dry_run_only"].set(LIMITS["dry_run_only"].default)
        if "script" not in self.kept:
            self._take_base()
        self._show_script()

    def touched(self, field: FormField) -> None:
        if field.row.name == "script":
            self._take_base()
            self._show_script()
        super().touched(field)

    def values(self) -> ScriptValues:
        values = super().values()
        script = str(self.fields["script"].value or "")
        if not script:
            raise ConfigError("script: choose a script first")
        if len(values.seeds) and not values.seeds.isdecimal():
            raise ConfigError("seeds: a script is one run; give one seed, or none")
        return ScriptValues(**{**vars(values), "script": script})

    def requests(self, values: Any) -> list[dict[str, Any]]:
        return [build_script_request(values)]

    def command(self, values: Any) -> str:
        return train_command(values, schema_rows(self.entry))

    def _draw_scripts(self) -> None:
        row = Row(
            name="script",
            label="Script",
            plain=True,
            choices=tuple(self.scripts),
            help="this home's, then the worker's own",
        )
        if not self.scripts:
            ui.label(f"There is none yet: put a file that ends in .sh into {self.web.home / 'scripts'}.")
            row = Row(name="script", label="Script", plain=True, help="a path inside the home")
        kept = self.kept.get("script")
        first = next(iter(self.scripts), "")
        self.fields["script"] = FormField(row, kept if kept in self.scripts else first, self.touched)
        self._told = ui.column().classes("w-full gap-2")

    def _take_base(self) -> None:
        """Fill in the base config that the chosen script's header names."""
        script = self.scripts.get(str(self.fields["script"].value))
        if script is None:
            return
        if script.algo and script.algo != self.algo:
            self.fields["algo"].set(script.algo)
            self.show_algo()
        if script.env_id:
            self.fields["env_id"].set(script.env_id)
            self.picker.refresh()
        if script.total_timesteps:
            self.fields["total_timesteps"].set(script.total_timesteps)

    def _show_script(self) -> None:
        """Show the header in words, and the source."""
        script = self.scripts.get(str(self.fields["script"].value))
        self._told.clear()
        if script is None:
            return
        with self._told:
            ui.label(script.description or "It has no @description.").classes("text-sm opacity-80 max-w-3xl")
            facts = {
                "Environments": script.env_family,
                "Phases": "" if script.phases is None else str(script.phases),
                "Timesteps": "" if script.total_timesteps is None else number(script.total_timesteps),
                "Author": script.author,
                "From": "the worker" if script.shipped else str(script.path),
            }
            with ui.row().classes("gap-x-5 gap-y-1 text-sm").props('data-header="true"'):
                for name, value in facts.items():
                    if value:
                        ui.label(f"{name}: {value}").classes("break-all")
            with ui.expansion("Source", icon="code").classes("w-full"):
                ui.label(read_source(script)).classes(
                    "mosaic-mono text-xs whitespace-pre overflow-auto max-h-96 w-full rounded "
                    "bg-gray-100 dark:bg-neutral-800 p-3"
                ).props('tabindex=0 data-source="true"')


def script_name(script: Script, web: Web) -> str:
    """Return the script's name for the daemon: a path from the home, or the name of a worker's script."""
    if script.shipped:
        return script.path.name
    return str(script.path.resolve().relative_to(web.home))


def read_source(script: Script) -> str:
    """Return the script's text, or the reason why it cannot be read."""
    try:
        text = script.path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return text if len(text) <= MOST_SOURCE else f"{text[:MOST_SOURCE]}\n… ({len(text):,} characters in all)"


def find_scripts(web: Web) -> list[Script]:
    """Return the scripts that the daemon accepts, without links that lead out of the home."""
    found = list_scripts(web.home, web.worker.command if web.worker else ())
    return [one for one in found if one.shipped or one.path.resolve().is_relative_to(web.home)]


def add(web: Web) -> None:
    """Register the page."""

    @page_at(web, "/script", "Script")
    async def script() -> None:
        await ScriptPage(web, await web.do(lambda: find_scripts(web))).show()
