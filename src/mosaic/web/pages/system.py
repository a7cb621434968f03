"""System: the machine's free resources, their use by each run, the daemon's health, the doctor's report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from mosaic.contract.errors import MosaicError
from mosaic.trainer.rpc.client import Client, Run, State
from mosaic.web import words
from mosaic.web.context import Web
from mosaic.web.layout import BLUE, STATES, code_box, page_at, trouble
from mosaic.web.machine import DISK_SECONDS, DiskUse, MachineReport, RunUse, Usage

REFRESH_SECONDS = 3.0
LIVE = (State.HANDSHAKE, State.READY, State.EXECUTING, State.PAUSED, State.LOST)
# Of live runs, and of the largest; more belong on the page of runs.
MOST_ROWS = 50
LARGEST = 12
MARKS = {
    "ok": ("check_circle", "positive", "ok"),
    "note": ("info", "primary", "note"),
    "trouble": ("error", "negative", "trouble"),
}


def add(web: Web) -> None:
    """Register the page."""
    machine = MachineReport(web.home)

    @page_at(web, "/system", "System")
    async def system() -> None:
        page = SystemPage(web, machine)
        await page.load()
        page.draw()


class SystemPage:
    """One user's view of the machine."""

    def __init__(self, web: Web, machine: MachineReport) -> None:
        self.web, self.machine = web, machine
        self.health: dict[str, Any] = {}
        self.away = ""
        self.live: Sequence[Run] = ()
        self.of_runs: dict[str, RunUse] = {}
        self.bytes_by_run: dict[str, int] = {}

    async def load(self) -> None:
        """Query daemon and machine; a missing daemon is reported, the machine's data remain."""

        def ask(client: Client) -> tuple[dict[str, Any], Sequence[Run]]:
            return client.health(), client.list_runs(states=LIVE, page_size=MOST_ROWS).runs

        try:
            self.health, self.live = await self.web.ask(ask)
            self.away = ""
        except MosaicError as error:
            self.away = str(error)
        live = self.live

        def look() -> tuple[Usage, dict[str, RunUse]]:
            usage = self.machine.usage()
            return usage, self.machine.of_runs(live, usage.gpus)

        self.usage, self.of_runs = await self.web.do(look)

    def draw(self) -> None:
        with ui.element("div").classes("grid grid-cols-1 lg:grid-cols-2 gap-4 w-full"):
            self.machine_card = _card("This machine", "memory")
            self.daemon_card = _card("Trainer daemon", "hub")
        self.runs_card = _card("Live runs", "directions_run")
        self._draw_runs()
        self.disk_card = _card("Disk", "storage")
        with _card("Doctor", "medical_services") as self.doctor_card:
            self.doctor_wait = ui.spinner(size="1.5rem").props("aria-hidden=true")
            self.doctor_place = ui.column().classes("w-full gap-1").props("data-testid=doctor")
            again = ui.button("Look again", icon="refresh", on_click=lambda: self.examine(anew=True))
            again.props("flat dense no-caps")
        self.show()
        with self.disk_card:
            self.disk_wait = ui.spinner(size="1.5rem").props("aria-hidden=true")
            self.disk_place = ui.column().classes("w-full gap-1").props("data-testid=disk")
        ui.timer(REFRESH_SECONDS, self.refresh)
        ui.timer(0.1, self.count, once=True)
        ui.timer(DISK_SECONDS, self.count)
        ui.timer(0.2, self.examine, once=True)

    async def refresh(self) -> None:
        await self.load()
        self.show()

    def show(self) -> None:
        self._show_machine()
        self._show_daemon()
        self._show_runs()

    def _show_machine(self) -> None:
        usage = self.usage
        with _emptied(self.machine_card):
            _meter(
                "CPU",
                usage.cpu_percent / 100,
                f"{usage.cpu_percent:.0f} % of {usage.cores} cores, load {usage.load:.1f}",
            )
            used, total = usage.memory_used, usage.memory_total
            _meter("Memory", used / total, f"{words.size(used)} of {words.size(total)}")
            _meter(
                "Disk",
                usage.disk_used / usage.disk_total,
                f"{words.size(usage.disk_free)} free of {words.size(usage.disk_total)}",
            )
            for gpu in usage.gpus:
                busy = "" if gpu.percent is None else f", {gpu.percent:.0f} % busy"
                part = gpu.used_bytes / gpu.total_bytes if gpu.total_bytes else 0.0
                _meter(
                    f"GPU {gpu.index}",
                    part,
                    f"{gpu.name}: {words.size(gpu.used_bytes)} of {words.size(gpu.total_bytes)}{busy}",
                )
            if not usage.gpus:
                _fact("GPU", "none found: runs train on the CPU")

    def _show_daemon(self) -> None:
        health = self.health
        with _emptied(self.daemon_card):
            if self.away:
                trouble(self.away)
            if not health:
                return
            for problem in (health["trouble"], *health["problems"]):
                if problem:
                    trouble(f"{problem}. Look at {health['home']}/var/logs/trainer_daemon.log")
            if not self.away and not health["trouble"]:
                with ui.row().classes("items-center gap-2"):
                    ui.icon("check_circle", color="positive").props("aria-hidden=true")
                    ui.label("healthy").props("data-testid=health")
            _fact("Version", f"{health['version']}, process {health['pid']}, {words.size(health['rss_bytes'])}")
            _fact("Up for", words.duration(time.time() - health["started_at"]))
            _fact("Address", str(health["target"]))
            _fact("Home", str(health["home"]))
            taken = health["cpu_slots"] - health["cpu_slots_free"]
            _fact("Slots", f"{taken:g} of {health['cpu_slots']:g} taken")
            counts = [f"{count:,} {STATES[State(name)][2]}" for name, count in health["runs"].items() if count]
            _fact("Runs", ", ".join(counts) or "none yet")
            _fact("Workers", ", ".join(health["workers"]) or "none")
            for gpu in health["gpus"]:
                _fact(f"GPU {gpu['index']}", f"{gpu['name']}: {'run ' + gpu['run_id'] if gpu['run_id'] else 'free'}")

    def _show_runs(self) -> None:
        self.runs_table.rows = [
            _run_row(run, self.of_runs.get(run.run_id, RunUse()), self.bytes_by_run.get(run.run_id))
            for run in self.live
        ]
        self.runs_table.set_visibility(bool(self.live))
        known = [use for use in self.of_runs.values() if use.processes]
        cpu, memory = sum(use.cpu_percent or 0 for use in known), sum(use.memory or 0 for use in known)
        in_all = f"In all: {cpu:.0f} % of a core, {words.size(memory)}"
        self.runs_total.text = in_all if self.live else "Nothing runs."

    def _draw_runs(self) -> None:
        """Draw the table once: only its numbers change."""
        with _emptied(self.runs_card):
            titles = {"name": "Run", "what": "What", "state": "State", "cpu": "CPU", "memory": "Memory"}
            titles |= {"disk": "Disk", "gpu": "GPU", "gpu_memory": "GPU memory"}
            columns = [{"name": name, "label": label, "field": name, "align": "left"} for name, label in titles.items()]
            self.runs_table = ui.table(columns=columns, rows=[], row_key="id").classes("w-full")
            self.runs_table.props('flat dense hide-pagination :rows-per-page-options="[0]" aria-label="Live runs"')
            link = '<a class="underline text-inherit" :href="props.row.href">{{ props.row.name }}</a>'
            self.runs_table.add_slot("body-cell-name", f'<q-td :props="props">{link}</q-td>')
            self.runs_total = ui.label().classes("text-sm opacity-80")

    async def count(self) -> None:
        """Count the bytes by run: slow with many runs, so it follows the page."""
        found = await self.web.do(self.machine.disk)
        self.disk_wait.set_visibility(False)
        self.bytes_by_run = found.by_run
        self._show_runs()
        self._show_disk(found)

    def _show_disk(self, found: DiskUse) -> None:
        largest = sorted(found.by_run.items(), key=lambda item: -item[1])[:LARGEST]
        with _emptied(self.disk_place):
            ui.label(
                f"{len(found.by_run):,} run folders hold {words.size(found.total)}; the largest:"
                if largest
                else "No run has left files yet."
            )
            for run_id, size in largest:
                with ui.row().classes("w-full items-center gap-3 no-wrap"):
                    ui.link(words.short_id(run_id), f"/run/{run_id}").classes(
                        "text-inherit mosaic-mono w-28 shrink-0 truncate"
                    )
                    ui.linear_progress(size / (largest[0][1] or 1), show_value=False, size="8px").classes("grow").props(
                        f'rounded aria-label="{words.size(size)}"'
                    )
                    ui.label(words.size(size)).classes("w-20 text-right shrink-0 text-sm")
            if largest:
                ui.label("Old runs are removed on the page of runs, leftovers of crashes by: mosaic gc").classes(
                    "text-sm opacity-80"
                )

    async def examine(self, *, anew: bool = False) -> None:
        """Run the doctor, which needs a second."""
        self.doctor_wait.set_visibility(True)
        try:
            found = await self.web.do(lambda: self.machine.doctor(anew=anew))
        except MosaicError as error:
            with _emptied(self.doctor_place):
                trouble(error)
            return
        finally:
            self.doctor_wait.set_visibility(False)
        with _emptied(self.doctor_place):
            for check in sorted(found["checks"], key=lambda one: ("trouble", "note", "ok").index(one["state"])):
                _draw_check(check)


def _draw_check(check: dict[str, Any]) -> None:
    icon, colour, word = MARKS[check["state"]]
    with ui.row().classes("w-full items-start gap-2 no-wrap"):
        ui.icon(icon, color=colour).props(f'aria-label="{word}"').classes("text-lg mt-0.5")
        with ui.column().classes("gap-1 min-w-0 grow"):
            with ui.row().classes("gap-x-2 gap-y-0"):
                ui.label(str(check["name"])).classes("font-medium")
                ui.label(str(check["text"])).classes("break-words min-w-0")
            if check["advice"] and check["state"] != "ok":
                code_box(str(check["advice"]))


def _run_row(run: Run, use: RunUse, size: int | None) -> dict[str, Any]:
    return {
        "id": run.run_id,
        "href": f"/run/{run.run_id}",
        "name": run.run_name or words.short_id(run.run_id),
        "what": f"{run.algo} {run.env_id}",
        "state": STATES[run.state][2],
        "cpu": "–" if use.cpu_percent is None else f"{use.cpu_percent:.0f} %",
        "memory": "–" if use.memory is None else words.size(use.memory),
        "disk": "–" if size is None else words.size(size),
        "gpu": ", ".join(map(str, run.gpus)) or "–",
        "gpu_memory": "–" if use.gpu_memory is None else words.size(use.gpu_memory),
    }


def _card(title: str, icon: str) -> ui.card:
    """Draw a card with a fixed heading; the changing content goes below it."""
    with ui.card().classes("w-full gap-2").props("flat bordered") as card:
        with ui.row().classes("items-center gap-2"):
            ui.icon(icon).classes("text-xl").props("aria-hidden=true")
            ui.label(title).classes("text-base font-medium").props('role=heading aria-level="2"')
        card.body = ui.column().classes("w-full gap-1")  # type: ignore[attr-defined]
    return card


def _emptied(place: Any) -> Any:
    """Return the emptied container for new content."""
    body = getattr(place, "body", place)
    body.clear()
    return body


def _meter(name: str, part: float, told: str) -> None:
    with ui.column().classes("w-full gap-0"):
        with ui.row().classes("w-full justify-between gap-2"):
            ui.label(name).classes("opacity-80")
            ui.label(told).classes("text-right")
        # A busy CPU is normal; full memory or disk stops runs.
        colour = "negative" if part > 0.95 and name != "CPU" else BLUE
        ui.linear_progress(min(1.0, max(0.0, part)), show_value=False, size="8px", color=colour).props(
            f'rounded aria-label="{name}"'
        )


def _fact(name: str, told: str) -> None:
    with ui.row().classes("w-full justify-between gap-x-3 gap-y-0"):
        ui.label(name).classes("opacity-80")
        ui.label(told).classes("text-right break-all min-w-0")
