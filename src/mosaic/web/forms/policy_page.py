"""The Policy form: evaluate a policy that a run saved, that was uploaded, or that lies inside the home."""

from __future__ import annotations

from typing import Any

from nicegui import context, events, ui

from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.store.stored import ensure
from mosaic.web.context import Web
from mosaic.web.forms.command_line import policy_command
from mosaic.web.forms.fields import FormField, draw_rows
from mosaic.web.forms.found import (
    MOST_UPLOAD_BYTES,
    Found,
    find_policies,
    keep_upload,
    policy_inside,
    read_policy,
    refuse_code,
)
from mosaic.web.forms.found import (
    POLICY as ENDING,
)
from mosaic.web.forms.listing import Listing
from mosaic.web.forms.own_rows import EVALUATION, LANE, LIMITS, POLICY
from mosaic.web.forms.page import JobPage
from mosaic.web.forms.requests import PolicyValues, build_policy_eval_request
from mosaic.web.forms.rows import Row
from mosaic.web.layout import page_at, tell

TOLD = ("env_id", "algo", "seed")
OVERRIDE = Row(
    name="override",
    label="Override environment",
    type="bool",
    default=False,
    help="what the policy's own files tell can be changed",
)


class PolicyPage(JobPage):
    """The form at /policy."""

    form = "policy"
    happening = "ui.policy_form"
    title = "Evaluate a policy"
    lead = "Let a saved policy play many episodes: their returns, films if wanted, and the live view while it plays."
    verb = "Start evaluation"

    def __init__(self, web: Web, found: list[Found], asked: str = "") -> None:
        super().__init__(web)
        self.found = found
        if asked:
            self.kept = {**self.kept, "policy_path": asked, "override": False}
        self.chosen: Found | None = None

    def draw_fields(self) -> None:
        with ui.card().classes("w-full gap-3"):
            ui.label("Policy").classes("text-base font-medium")
            empty = "No run has saved a policy yet. Train one first: “Save model” is on by default."
            self.listing = Listing(self.found, empty, self._choose)
            path = FormField(POLICY["policy_path"], self.kept.get("policy_path"), self.touched)
            self.fields["policy_path"] = path
            self._draw_upload()
        with ui.card().classes("w-full gap-3"):
            ui.label("What it plays").classes("text-base font-medium")
            self._source = ui.label("").classes("text-sm opacity-80").props('data-told="true"')
            self.fields |= draw_rows([POLICY[name] for name in TOLD], self.kept, self.touched)
            self.fields |= draw_rows(LANE.values(), self.kept, self.touched)
            self.fields["override"] = FormField(OVERRIDE, self.kept.get("override"), self.touched)
        with ui.card().classes("w-full gap-3"):
            ui.label("How it is judged").classes("text-base font-medium")
            rows = [*EVALUATION.values(), LIMITS["dry_run_only"]]
            self.fields |= draw_rows(rows, self.kept, self.touched)
        self.draw_names()
        self._follow_path(filled=bool(self.kept.get("override")))

    def touched(self, field: FormField) -> None:
        if field.row.name == "policy_path":
            self._follow_path()
        elif field.row.name == "override":
            self._lock()
            if not field.value:
                self._fill()
        super().touched(field)

    def values(self) -> PolicyValues:
        if self.chosen is None:
            raise ConfigError("policy_path: choose a policy first")
        if not self.fields["override"].value:
            refuse_code(self.chosen, self.web.home, self.schema)
        return PolicyValues(
            **{
                **self.common(),
                **self.read([*TOLD, *EVALUATION]),
                "policy_path": str(self.chosen.path),
            }
        )

    def requests(self, values: Any) -> list[dict[str, Any]]:
        if not values.env_id:  # an empty algorithm is left to the policy's keys
            raise ConfigError("env_id: the policy's files do not tell it; turn on “Override environment”, fill it in")
        return [build_policy_eval_request(values)]

    def command(self, values: Any) -> str:
        told = {name: getattr(self.chosen, name) for name in TOLD} if self.chosen else {}
        return policy_command(values, told)

    def _draw_upload(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            upload = ui.upload(
                label=f"Upload a policy (*{ENDING}) and its sidecar (*.json)",
                auto_upload=True,
                multiple=True,
                max_file_size=MOST_UPLOAD_BYTES,
                on_upload=self._uploaded,
                on_rejected=lambda: tell(f"The file is larger than {MOST_UPLOAD_BYTES // 1_000_000} MB; no policy is."),
            )
            upload.props("flat bordered dense").classes("mosaic-upload w-full sm:max-w-md")

    async def _uploaded(self, event: events.UploadEventArguments) -> None:
        name, data = event.file.name, await event.file.read()
        try:
            path = await self.web.do(lambda: keep_upload(name, data, self.web.home))
        except MosaicError as error:
            tell(error)
            return
        self.web.happenings.note("ui.policy_form.uploaded", file=path.name, bytes=len(data))
        self.listing.replace(await self.web.do(lambda: find_policies(self.web.home)))
        policy = path.with_name(path.name.removesuffix(".json"))
        if policy.is_file():
            self.fields["policy_path"].set(str(policy.relative_to(self.web.home)))
            self.touched(self.fields["policy_path"])
        tell(f"Kept as {path.relative_to(self.web.home)}", kind="positive")

    def _choose(self, one: Found) -> None:
        self.fields["policy_path"].set(str(one.path.relative_to(self.web.home)))
        self.touched(self.fields["policy_path"])

    def _follow_path(self, *, filled: bool = False) -> None:
        """Read the policy at the path; `filled` keeps the user's overrides."""
        field = self.fields["policy_path"]
        text = str(field.value or "").strip()
        self.chosen = None
        if text:
            try:
                self.chosen = read_policy(policy_inside(text, self.web.home), self.web.home)
            except (ConfigError, OSError) as error:
                field.refuse(str(error))
        self.listing.select(str(self.chosen.path) if self.chosen else "")
        self._fill()
        if filled:
            for name in (*TOLD, *LANE):
                self.fields[name].set(self.kept.get(name))
        else:
            self.fields["override"].set(False)
        self._tell_source()
        self._lock()

    def _fill(self) -> None:
        """Set environment, algorithm, seed and live view from the policy's own files."""
        one = self.chosen
        for name in TOLD:
            self.fields[name].take_default(getattr(one, name) if one else None)
        lane = (one.fastlane if one else None) or {}
        for name, row in LANE.items():
            value = lane.get(name, row.default)
            try:
                row.read(row.shown(value))
            except ConfigError:  # a hand-written config may hold anything
                value = row.default
            self.fields[name].take_default(value)

    def _lock(self) -> None:
        locked = self.chosen is not None and not self.fields["override"].value
        for name in (*TOLD, *LANE):
            self.fields[name].lock(locked)

    def _tell_source(self) -> None:
        if self.chosen is None:
            self._source.text = "Choose a policy: its own files tell what it was trained on."
        elif self.chosen.source:
            self._source.text = f"As {self.chosen.source} tells; locked unless you override it."
        else:
            self._source.text = "Neither a sidecar nor a config lies beside this policy: override, and fill it in."


def add(web: Web) -> None:
    """Register the page, if a worker can load policies."""

    @page_at(web, "/policy", "Evaluate")
    async def policy() -> None:
        if web.worker is not None and not web.worker.supports_policy_load:
            raise ConfigError(f"the worker {web.worker.label} cannot load policies; install one that can")
        asked = context.client.request.query_params.get("policy", "")
        if asked:
            await web.do(lambda: ensure(web.home / asked, web.home))
        found = await web.do(lambda: find_policies(web.home))
        await PolicyPage(web, found, asked).show()
