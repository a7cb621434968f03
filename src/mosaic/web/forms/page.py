"""JobPage: the common part of the four forms, from the first field to the submitted run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from nicegui import app, ui

from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.contract.settings import parse_setting
from mosaic.contract.workers import WorkerCapabilities
from mosaic.trainer.rpc.client import Client
from mosaic.web.context import Web
from mosaic.web.forms.check import Checked, dry_run, faulty_field
from mosaic.web.forms.fields import FormField, draw_rows
from mosaic.web.forms.memory import FormMemory
from mosaic.web.forms.output import Aside, Output
from mosaic.web.forms.own_rows import LANE, LIMITS, NAMES, SECRET
from mosaic.web.forms.rows import Row
from mosaic.web.layout import confirmed, tell

CSS = """
.mosaic-changed .q-field__control { border-left: 3px solid #0072B2; }
.mosaic-changed .q-toggle__label { font-weight: 600; }
.mosaic-bar { position: sticky; bottom: 0; z-index: 10; }
.mosaic-form .q-field__bottom { padding-top: 4px; min-height: 18px; line-height: 1.2; }
.mosaic-form .q-field__messages { line-height: 1.25; }
.mosaic-upload .q-uploader__list { min-height: 0; padding: 0 8px; }
.mosaic-command .mosaic-mono { font-size: 12px; }
@media (max-width: 480px) {
  .mosaic-bar .q-btn .q-icon.on-left { display: none; }
  .mosaic-bar .q-btn { padding: 4px 10px; }
}
.mosaic-form .q-expansion-item__container > .q-item { border-radius: 8px; }
"""


class OtherRow(Row):
    """Settings without a field, one per line."""

    def read(self, given: Any) -> str:
        read_other(str(given or ""))
        return str(given or "").strip()


OTHER = OtherRow(
    name="other", label="Other settings", help="one KEY=VALUE a line: extras of the worker that have no field here"
)


class JobPage(ABC):
    """One form on one page. Subclasses draw their fields and define the request and the command."""

    form: ClassVar[str]
    """its name in the memory and the log"""
    happening: ClassVar[str] = "ui.train_form"
    title: ClassVar[str]
    lead: ClassVar[str]
    verb: ClassVar[str]

    def __init__(self, web: Web) -> None:
        self.web = web
        self.schema = web.schema()
        self.memory = FormMemory(app.storage.user, self.form)
        self.kept = self.memory.values
        self.fields: dict[str, FormField] = {}
        self.params: dict[str, FormField] = {}
        self._busy = False

    # The parts that a form defines

    @abstractmethod
    def draw_fields(self) -> None:
        """Draw all fields."""

    @abstractmethod
    def values(self) -> Any:
        """Return the form's values; ConfigError for an invalid one."""

    @abstractmethod
    def requests(self, values: Any) -> list[dict[str, Any]]:
        """Return the payloads to submit."""

    @abstractmethod
    def command(self, values: Any) -> str:
        """Return the equivalent command line."""

    @property
    def algo(self) -> str:
        """Return the algorithm whose parameters are shown."""
        return str(self.fields["algo"].value or "").strip() if "algo" in self.fields else ""

    @property
    def entry(self) -> Mapping[str, Any]:
        """Return the algorithm's schema; {} for a user's own."""
        return dict(self.schema.get(self.algo) or {})

    # Drawing

    async def show(self) -> None:
        """Draw the page."""
        ui.add_css(CSS)
        self.web.happenings.note(f"{self.happening}.opened", form=self.form)
        with ui.column().classes("w-full gap-1"):
            ui.label(self.title).classes("text-2xl font-bold").props("aria-hidden=true")
            ui.label(self.lead).classes("opacity-70 max-w-3xl")
        if self.web.worker is None:
            problems = "; ".join(self.web.worker_problems)
            raise ConfigError(f"no worker is installed; run: pip install mosaic-rl {problems}")
        with ui.element("div").classes(
            "mosaic-form grid w-full grid-cols-1 lg:grid-cols-[minmax(0,1fr)_23rem] gap-5 items-start"
        ):
            with ui.column().classes("w-full min-w-0 gap-4"):
                self.draw_fields()
                self._draw_bar()
                self.output = Output()
            self.aside = Aside(self)
        self.refresh()

    def draw_names(self) -> None:
        """Draw the section with names, notes, limits and settings without a field."""
        rows = [*NAMES.values(), *(row for row in LIMITS.values() if row.name != "dry_run_only")]
        with self.fold("Names, notes and limits", "label"):
            self.add(draw_rows([row for row in rows if row.name != "notes"], self.kept, self.touched))
            self.add(draw_rows([NAMES["notes"]], self.kept, self.touched, grid="w-full"))
            self.fields["other"] = FormField(OTHER, self.kept.get("other"), self.touched)
            self.fields["other"].widget.props("type=textarea autogrow")

    def draw_lane(self) -> None:
        """Draw the section of the live view."""
        with self.fold("Live view (FastLane)", "videocam"):
            self.add(draw_rows(LANE.values(), self.kept, self.touched))

    def fold(self, title: str, icon: str, *, opened: bool = False) -> ui.expansion:
        """Draw a collapsible section; a refused field inside opens it."""
        with ui.card().classes("w-full p-0"):
            fold = ui.expansion(title, icon=icon, value=opened).classes("w-full")
            fold.props('header-class="text-base font-medium"')
        self._fold = fold
        return fold

    def add(self, fields: Mapping[str, FormField]) -> None:
        """Add fields to the form."""
        for name, field in fields.items():
            self.fields[name] = field
            field.expansion = getattr(self, "_fold", None)

    def _draw_bar(self) -> None:
        with ui.card().classes("mosaic-bar w-full p-3 shadow-lg"):
            with ui.row().classes("w-full items-center gap-x-3 gap-y-1"):
                self._submit = ui.button(self.verb, icon="play_arrow", on_click=self.submit)
                self._submit.props("unelevated no-caps")
                self._validate = ui.button("Validate only", icon="rule", on_click=self.validate)
                self._validate.props("outline no-caps").tooltip("The worker's dry run; nothing is submitted")
                again = ui.button(icon="delete_sweep", on_click=self.start_over).classes("order-last ml-auto")
                again.props('flat round dense aria-label="Start over"').tooltip("Start over with the defaults")
                self._state = (
                    ui.label("").classes("text-sm min-w-0 sm:grow sm:basis-40 break-words").props("role=status")
                )

    # Reading

    def touched(self, field: FormField) -> None:
        """Save and redraw after a user's change of a field."""
        self.remember()
        self.refresh()

    def remember(self) -> None:
        """Save all typed values for the next visit."""
        values = {name: field.value for name, field in self.fields.items()}
        changed = {name: field.value for name, field in self.params.items() if not field.is_default}
        first_on = {name: field.value for name, field in self.params.items() if field.row.start is not None}
        self.memory.keep(values, self.algo, {**first_on, **changed})

    def refresh(self) -> None:
        """Update the list of changes, the command, and the errors."""
        problems = self.problems()
        self._submit.set_enabled(not self._busy)
        count = len(problems)
        self._state.text = (
            "" if not count else f"{count} field{'s' if count > 1 else ''} to mend: {', '.join(problems)}"
        )
        self._state.classes(add="text-negative") if count else self._state.classes(remove="text-negative")
        self.aside.refresh(problems)

    def all_fields(self) -> dict[str, FormField]:
        return {**self.fields, **self.params}

    def problems(self) -> dict[str, str]:
        """Return the errors, by the field's title."""
        return {field.row.title: field.problem for field in self.all_fields().values() if field.problem}

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of these fields; ConfigError for the first invalid one."""
        return {name: self.fields[name].row.read(self.fields[name].value) for name in names if name in self.fields}

    def read_params(self) -> dict[str, Any]:
        return {name: field.row.read(field.value) for name, field in self.params.items()}

    def common(self) -> dict[str, Any]:
        """Return the values that every form has."""
        names = [*NAMES, *LANE, *LIMITS]
        return {
            **self.read(names),
            "other": read_other(str(self.fields["other"].value or "")),
            "module": self._module(),
        }

    def _module(self) -> str | None:
        worker: WorkerCapabilities | None = self.web.worker
        words = list(worker.command) if worker else []
        return words[words.index("-m") + 1] if "-m" in words[:-1] else None

    # Acting

    async def validate(self) -> bool:
        """Run the worker's dry run; nothing is submitted and no id is assigned."""
        payloads = self._payloads()
        if payloads is None:
            return False
        with self._working("the worker checks the form …"):
            checked = await self._checked(payloads[0])
        if checked.ok:
            self._state.text = "The worker would take this."
            self.web.happenings.note(f"{self.happening}.validated", form=self.form)
            self.output.good("The worker would take this. Nothing was submitted.", checked.output)
        return checked.ok

    async def submit(self) -> None:
        """Dry-run, then submit, then open the run's page. A refusal leaves the form unchanged."""
        payloads = self._payloads()
        if payloads is None or self._busy:
            return
        with self._working("the worker checks the form …"):
            checked = await self._checked(payloads[0])
            if not checked.ok:
                return
            self.output.good("The worker would take this. It is being submitted …", checked.output)
            accepted = await self._send(payloads)
        if accepted and len(accepted) == len(payloads):
            self.forget_secret()
            ui.navigate.to(f"/run/{accepted[0]}")

    async def start_over(self) -> None:
        """Clear the form after a confirmation."""
        if await confirmed("Start over with the defaults?", "Start over", detail="What you typed here is forgotten."):
            self.memory.forget()
            ui.navigate.to(f"/{self.form}")

    def forget_secret(self) -> None:
        if SECRET in self.fields:
            self.fields[SECRET].set("")

    async def _send(self, payloads: list[dict[str, Any]]) -> list[str]:
        accepted: list[str] = []
        for number, payload in enumerate(payloads, 1):
            self._state.text = f"submitting {number} of {len(payloads)} …" if len(payloads) > 1 else "submitting …"
            try:
                run = await self.web.ask(partial(Client.submit_run, payload=payload))
            except MosaicError as error:
                before = f" {len(accepted)} of {len(payloads)} runs were accepted before it." if accepted else ""
                self._refused(f"{error}{before}", str(error))
                return accepted
            accepted.append(run.run_id)
            self.web.happenings.note(f"{self.happening}.submitted", run.run_id, form=self.form)
        return accepted

    def _payloads(self) -> list[dict[str, Any]] | None:
        """Return the requests, or None with the invalid fields shown."""
        faulty = [field for field in self.all_fields().values() if field.problem]
        if faulty:
            for field in faulty:
                field.refuse(field.problem)
            self.output.bad("Nothing was submitted: some fields cannot be read.", self._listed())
            faulty[0].reveal()
            return None
        if SECRET in self.fields:
            self.web.happenings.hide(str(self.fields[SECRET].value or ""))
        try:
            return self.requests(self.values())
        except ConfigError as error:
            self._refused(str(error), str(error))
            return None

    def _listed(self) -> str:
        return "\n".join(f"{title}: {problem}" for title, problem in self.problems().items())

    async def _checked(self, payload: dict[str, Any]) -> Checked:
        worker, home = self.web.worker, self.web.home
        checked = await self.web.do(lambda: dry_run(payload, worker, home))
        if not checked.ok:
            self._refused(checked.error, checked.error, checked.output)
        return checked

    def _refused(self, headline: str, error: str, output: str = "") -> None:
        """Show the reason, mark its field, and keep everything as typed."""
        self.web.happenings.note(f"{self.happening}.refused", "-", form=self.form, reason=error)
        self.output.bad(headline, output if output.strip() != error else "")
        name = faulty_field(error, list(self.all_fields()))
        if name is not None:
            field = self.all_fields()[name]
            field.refuse(error)
            field.reveal()
        else:
            tell(headline)
        self.refresh()

    def _working(self, words: str) -> _Working:
        return _Working(self, words)

    def set_busy(self, busy: bool, words: str = "") -> None:
        self._busy = busy
        for button in (self._submit, self._validate):
            button.props(add="loading") if busy else button.props(remove="loading")
        self._state.text = words
        if not busy:
            self.refresh()


class _Working:
    """The busy state of a form: the buttons load, and a line names the current step."""

    def __init__(self, page: JobPage, words: str) -> None:
        self._page, self._words = page, words

    def __enter__(self) -> None:
        self._page.set_busy(True, self._words)

    def __exit__(self, *_: object) -> None:
        self._page.set_busy(False)


def read_other(text: str) -> dict[str, Any]:
    """Parse the settings of the free field, one per line."""
    lines = [line.strip() for line in text.splitlines()]
    return dict(parse_setting(line, "Other settings") for line in lines if line)
