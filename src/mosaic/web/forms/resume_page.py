"""The Resume form: a new run that continues from a checkpoint, with changed parameters if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nicegui import context, ui

from mosaic.contract.checkpoints import checkpoints_of
from mosaic.contract.errors import ConfigError, RunIdError
from mosaic.contract.paths import RunPaths, check_run_id
from mosaic.store.stored import ensure
from mosaic.web.context import Web
from mosaic.web.forms.command_line import resume_command
from mosaic.web.forms.fields import FormField, draw_rows
from mosaic.web.forms.found import Found, find_checkpoints, inside_home, read_checkpoint
from mosaic.web.forms.listing import Listing
from mosaic.web.forms.own_rows import LIMITS, RESUME
from mosaic.web.forms.requests import ResumeValues, build_resume_request
from mosaic.web.forms.rows import Row, changed, schema_rows
from mosaic.web.forms.training import TrainingPage
from mosaic.web.layout import page_at
from mosaic.web.words import number


class ResumePage(TrainingPage):
    """The form at /resume."""

    form = "resume"
    title = "Resume"
    lead = (
        "Go on from a checkpoint in a new run. Unchanged, it goes on exactly where it was; what you change is listed."
    )
    verb = "Resume training"

    def __init__(self, web: Web, found: list[Found], asked: str = "") -> None:
        super().__init__(web)
        self.found = found
        if asked:
            self.kept = {**self.kept, "checkpoint_path": asked}
        self.chosen: Found | None = None

    @property
    def algo(self) -> str:
        return self.chosen.algo if self.chosen else ""

    def draw_fields(self) -> None:
        with ui.card().classes("w-full gap-3"):
            ui.label("Checkpoint").classes("text-base font-medium")
            empty = "No run has saved a checkpoint yet. Train with a checkpoint schedule first."
            self.listing = Listing(self.found, empty, self._choose)
            path = FormField(RESUME["checkpoint_path"], self.kept.get("checkpoint_path"), self.touched)
            self.fields["checkpoint_path"] = path
            self._told = ui.label("").classes("text-sm opacity-80").props('data-told="true"')
        with ui.card().classes("w-full gap-3"):
            ui.label("How to go on").classes("text-base font-medium")
            grid = "grid w-full grid-cols-1 sm:grid-cols-2 gap-x-5 gap-y-2 items-start"
            rows = [RESUME["additional_timesteps"], RESUME["seed"], RESUME["env_id"]]
            self.fields |= draw_rows(rows, self.kept, self.touched, grid=grid)
            with ui.element("div").classes(grid):
                self.draw_machine()
                self.fields["dry_run_only"] = FormField(
                    LIMITS["dry_run_only"], self.kept.get("dry_run_only"), self.touched
                )
        self.draw_params_place()
        self.draw_lane()
        self.draw_recording()
        self.draw_names()
        self._follow_path()

    def touched(self, field: FormField) -> None:
        if field.row.name == "checkpoint_path":
            self._follow_path()
        super().touched(field)

    def values(self) -> ResumeValues:
        if self.chosen is None:
            raise ConfigError("checkpoint_path: choose a checkpoint first")
        rows = self._rows()
        params = self.read_params()
        differing = changed(rows.values(), params)
        return ResumeValues(
            **{
                **self.tracked(),
                **self.read(["additional_timesteps", "seed", "env_id"]),
                "checkpoint_path": str(self.chosen.path),
                "algo": self.chosen.algo if self.entry else "",  # else the worker reads the file, and refuses code
                "params": {name: params[name] for name in differing},
            }
        )

    def requests(self, values: Any) -> list[dict[str, Any]]:
        return [build_resume_request(values)]

    def command(self, values: Any) -> str:
        return resume_command(values, self._rows())

    def _rows(self) -> dict[str, Row]:
        """Return the algorithm's parameters, with the saved run's values as defaults."""
        saved: Mapping[str, Any] = (self.chosen.args if self.chosen else None) or {}
        rows = schema_rows(self.entry)
        kept = {name: saved[name] for name, row in rows.items() if name in saved and row.takes(saved[name])}
        return {name: replace(row, default=kept.get(name, row.default), start=None) for name, row in rows.items()}

    def _choose(self, one: Found) -> None:
        self.fields["checkpoint_path"].set(str(one.path.relative_to(self.web.home)))
        self.touched(self.fields["checkpoint_path"])

    def _follow_path(self) -> None:
        """Read the checkpoint at the path, and show its run's parameters."""
        before = self.chosen
        field = self.fields["checkpoint_path"]
        text = str(field.value or "").strip()
        self.chosen = None
        if text:
            try:
                self.chosen = find_one(text, self.web)
            except ConfigError as error:
                field.refuse(str(error))
        if before != self.chosen or not self.params:
            self.draw_params(self.memory.params(self.algo) if before is None and self.chosen else {}, self._rows())
        one = self.chosen
        self.listing.select(str(one.path) if one else "")
        self._told.text = ""
        if one is not None:
            self._told.text = f"{one.algo} on {one.env_id}, seed {one.seed}, at step {number(one.step)}"


def find_one(text: str, web: Web) -> Found:
    """Return the checkpoint that a path inside the home, or a run's id, names."""
    folder = _run_folder(text, web)
    folder = inside_home(text, web.home) if folder is None else folder
    for path in checkpoints_of(folder) if folder.is_dir() else ():
        owner = next((part for part in path.parents if part.parent == web.runs_folder), None)
        if (one := read_checkpoint(path, owner.name if owner else "")) is not None:
            return one
    raise ConfigError("checkpoint_path: there is no checkpoint that can be read; choose one from the list")


def _run_folder(text: str, web: Web) -> Path | None:
    try:
        folder = RunPaths(text.strip(), web.home).folder
    except RunIdError:
        return None
    return folder if folder.is_dir() else None


def add(web: Web) -> None:
    """Register the page."""

    @page_at(web, "/resume", "Resume")
    async def resume() -> None:
        asked = context.client.request.query_params
        run_id, path = asked.get("run", ""), asked.get("checkpoint", "")
        if run_id and not path:
            await web.do(lambda: ensure(RunPaths(run_id, web.home).folder, web.home))
            newest = await web.do(lambda: find_checkpoints(web.home, check_run_id(run_id)))
            if not newest:
                raise ConfigError(f"run {run_id} has saved no checkpoint, so it cannot be resumed")
            path = str(newest[0].path.relative_to(web.home))
        elif path:
            path = _of_run(path, run_id, web)
            await web.do(lambda: ensure(web.home / path, web.home))
        found = await web.do(lambda: find_checkpoints(web.home))
        await ResumePage(web, found, path).show()


def _of_run(path: str, run_id: str, web: Web) -> str:
    """Return the checkpoint that an address names: a step of the run, a path in its folder, or a path in the home."""
    if not run_id:
        return path
    folder = (web.runs_folder / check_run_id(run_id)).relative_to(web.home)
    for start in (folder / "checkpoints", folder):
        if (web.home / start / path).is_dir():
            return str(start / path)
    return path
