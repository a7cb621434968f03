"""Play: watch a policy step an environment; take over with the keyboard, hand back."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from nicegui import background_tasks, context, ui

from mosaic import catalog
from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.store.stored import ensure
from mosaic.web import words
from mosaic.web.context import Web
from mosaic.web.forms.found import Found, find_policies
from mosaic.web.layout import page_at, tell, trouble
from mosaic.web.pages.play_stage import PlayView
from mosaic.web.play_session import PlaySession, find_policy

# An abandoned page holds a process of half a gigabyte.
IDLE_SECONDS = 600.0
LOOK_SECONDS = 10.0
MOST_POLICIES = 500


def add(web: Web) -> None:
    """Register the page."""

    @page_at(web, "/play", "Play")
    async def play(policy: str = "", env: str = "", greedy: int = 0) -> None:
        command = _command(web)
        if not policy and not env:
            await _draw_choice(web)
            return
        if policy:
            await web.do(lambda: ensure(web.home / policy, web.home))
        path = find_policy(web.home, policy) if policy else None
        PlayPage(web, command, {"policy": path, "env_id": env, "greedy": bool(greedy)}).draw()


class PlayPage:
    """One game: its process from start to end."""

    def __init__(self, web: Web, command: tuple[str, ...], asked: dict[str, Any]) -> None:
        self.web, self.command, self.asked = web, command, asked
        self.session: PlaySession | None = None
        self.gone = False

    def draw(self) -> None:
        """Draw the container of the game, which starts immediately and ends with the page."""
        with ui.row().classes("items-center gap-3").props("role=status") as self.waiting:
            ui.spinner(size="2rem").props("aria-hidden=true")
            ui.label("Starting the worker: a policy takes some seconds to load …")
        self.place = ui.column().classes("w-full gap-4")
        context.client.on_delete(self.leave)
        ui.timer(0.05, self.begin, once=True)
        ui.timer(LOOK_SECONDS, self.look)

    async def begin(self) -> None:
        """Start the process and the first episode; an error is shown in place of the game."""
        self.waiting.set_visibility(True)
        self.place.clear()
        try:
            await self.end()
            session = await PlaySession.start(self.command, self.web.home, **self.asked)
            self.session = session
            if self.gone:  # the user left while it was loading
                await self.end()
                return
            with self.place:
                self.stage = PlayView(self.web, session, self.again)
                await self.stage.reset(None)
        except MosaicError as error:
            self.web.page_trouble(error)
            await self.end()
            with self.place:
                trouble(error)
                ui.button("Try again", icon="refresh", on_click=self.begin)
        finally:
            self.waiting.set_visibility(False)

    async def again(self, greedy: bool) -> None:
        """Restart, sampled or greedy."""
        self.asked["greedy"] = greedy
        await self.begin()

    async def look(self) -> None:
        """End an idle game."""
        if self.session is not None and self.session.alive and self.session.idle_seconds > IDLE_SECONDS:
            await self.end()
            self.place.clear()
            with self.place:
                ui.label(f"The game was ended after {words.duration(IDLE_SECONDS)} without a step.")
                ui.button("Start again", icon="refresh", on_click=self.begin)

    async def end(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    def leave(self) -> None:
        """End the game when the page closes."""
        self.gone = True
        background_tasks.create(self.end(), name="end of a game")


async def _draw_choice(web: Web) -> None:
    """Draw the choice: the policies that runs saved, or an environment by hand."""
    found = await web.do(lambda: find_policies(web.home)[:MOST_POLICIES])
    ui.label("Watch a policy, and take over the controls").classes("text-xl font-medium")
    rows = [_row_of(web, one) for one in found]
    titles = {"name": "Policy", "algo": "Algorithm", "env": "Environment", "seed": "Seed", "step": "Steps"}
    titles |= {"return": "Return", "age": "Age"}
    columns = [{"name": name, "label": label, "field": name, "align": "left"} for name, label in titles.items()]
    if rows:
        table = ui.table(columns=columns, rows=rows, row_key="path", pagination=15).classes("w-full")
        table.props('flat bordered dense :grid="Quasar.Screen.lt.md" aria-label="Policies"')
        link = (
            '<a class="underline text-inherit" :href="props.row.href" :title="props.row.path">{{ props.row.name }}</a>'
        )
        table.add_slot("body-cell-name", f'<q-td :props="props">{link}</q-td>')
        words_of = "{{ props.row.algo }} on {{ props.row.env }}, seed {{ props.row.seed }}, {{ props.row.age }}"
        table.add_slot(
            "item",
            f'<div class="w-full p-1"><q-card flat bordered class="p-3">{link}<div>{words_of}</div></q-card></div>',
        )
    else:
        ui.label("No run has saved a policy yet. Train one with “save model” on, then come back.").classes("opacity-80")
        ui.button("Train an agent", icon="play_circle", on_click=lambda: ui.navigate.to("/train")).props("outline")
    ui.label("Or play an environment yourself").classes("text-xl font-medium mt-4")
    ready = [
        env_id
        for env_id in catalog.ids()
        if (one := catalog.find(env_id)) and one.family != "mujoco" and catalog.missing_package(one) is None
    ]
    with ui.row().classes("items-center gap-2 w-full"):
        chosen = ui.input("Environment", value="CartPole-v1", autocomplete=ready).props("dense outlined")
        chosen.classes("w-80 max-sm:grow")

        def start() -> None:
            if not (chosen.value or "").strip():
                tell(ConfigError("give the id of an environment, such as CartPole-v1"))
                return
            ui.navigate.to(f"/play?{urlencode({'env': chosen.value.strip()})}")

        ui.button("Play", icon="sports_esports", on_click=start)
        chosen.on("keydown.enter", start)


def _row_of(web: Web, one: Found) -> dict[str, Any]:
    relative = one.path.relative_to(web.home).as_posix()
    return {
        "path": relative,
        "href": f"/play?{urlencode({'policy': relative})}",
        "name": one.path.name,
        "algo": one.algo or "?",
        "env": one.env_id or "?",
        "seed": "–" if one.seed is None else str(one.seed),
        "step": words.number(one.step),
        "return": words.number(one.mean_return),
        "age": words.age(one.saved_at),
    }


def _command(web: Web) -> tuple[str, ...]:
    worker = web.worker
    if worker is None or not worker.supports_policy_load:
        raise ConfigError("no worker here can play policies; install one with: pip install mosaic-rl")
    return worker.command
