"""The stage of a game: the picture, its numbers, the buttons, and the current player."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import background_tasks, events, ui

from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.web import words
from mosaic.web.context import Web
from mosaic.web.layout import tell
from mosaic.web.play_controls import ARROWS, NUMBER_KEYS, KeyControls, controls_for
from mosaic.web.play_session import PlaySession

PACES = {1: "1/s", 5: "5/s", 15: "15/s", 30: "30/s", 60: "60/s"}
PACE = 15
# After an episode users want to see its last frame.
REST_SECONDS = 1.0
SEED_LIMIT = 2**32
SHOWN_EPISODES = 8
KEYS = [*ARROWS, *(str(number) for number in range(NUMBER_KEYS))]
# Only keys that act are withheld from the browser: Tab still leaves the stage.
LISTEN = (
    f"(e) => {{ if ({json.dumps(KEYS)}.includes(e.key) && !e.ctrlKey && !e.metaKey && !e.altKey) {{ "
    "e.preventDefault(); if (!e.repeat) emit({key: e.key}); } }"
)
STYLE = """
.mosaic-stage { outline-offset: 4px; border-radius: 8px; }
.mosaic-stage img { width: 100%; max-height: 52vh; object-fit: contain; border-radius: 8px; background: #8882;
  image-rendering: auto; display: block; }
.mosaic-stage.mosaic-yours { box-shadow: 0 0 0 3px #E69F00; }
"""


class PlayView:
    """One session on one page. The worker's messages come in, buttons and keys go out."""

    def __init__(self, web: Web, session: PlaySession, again: Callable[[bool], Awaitable[None]]) -> None:
        self.web, self.session, self.again = web, session, again
        self.has_policy = session.introduction.get("policy_path") is not None
        self.env_id = str(session.introduction.get("env_id") or "")
        self.controls = KeyControls("none")
        self.running = False
        self.yours = not self.has_policy
        self.pace = PACE
        self.held: list[str] = []
        self.taps: list[str] = []
        self.over = True
        self.seed = 0
        self.steps_of_yours = 0
        self._loops = 0
        """the number of starts: a loop paused in its sleep must not resume beside another"""
        self._draw()

    # The game

    async def reset(self, seed: int | None) -> None:
        """Begin a new episode, with this seed or the next."""
        message = await self.session.reset(seed)
        self.over, self.steps_of_yours, self.seed = False, 0, int(message["seed"])
        first = not self.controls.possible and not self.controls.reason
        self.controls = controls_for(self.env_id, message.get("action_space") or {})
        if first:
            self._draw_controls()
        self.seed_field.value = self.seed
        self.numbers["Seed"].text = str(self.seed)
        self._show({"step_index": -1, "reward": 0.0, "episode_reward": 0.0, **message})
        self.verdict.text = str(message.get("render_reason") or "")

    async def step(self, action: int | list[float] | None) -> None:
        """Make one step, by the policy if `action` is None."""
        answers = await self.session.step(action)
        self.steps_of_yours += action is not None
        self._show(answers[0])
        if len(answers) > 1:
            self.over = True
            self._note_episode(answers[1], answers[0])

    async def _loop(self) -> None:
        """Step at the chosen pace until stopped."""
        self._loops += 1
        mine = self._loops
        while self.running and self.session.alive and mine == self._loops:
            begun = asyncio.get_running_loop().time()
            try:
                if self.over:
                    await asyncio.sleep(REST_SECONDS)
                    if self.running:
                        await self.reset(None)
                else:
                    await self._turn()
            except MosaicError as error:
                self._stop_for(error)
                return
            spent = asyncio.get_running_loop().time() - begun
            await asyncio.sleep(max(0.001, 1 / self.pace - spent))
        if mine == self._loops:
            self._show_running(False)

    async def _turn(self) -> None:
        """Act for the current player; without a held key, a player's turn may pass without a step."""
        if not self.yours:
            await self.step(None)
            return
        keys = [*self.taps, *self.held]
        self.taps.clear()
        action = self._sliders() if self.controls.kind == "continuous" and not keys else self.controls.action(keys)
        if action is not None:
            await self.step(action)

    # Drawing

    def _draw(self) -> None:
        ui.add_css(STYLE)
        told = self.session.introduction
        with ui.row().classes("items-baseline gap-x-3 gap-y-0"):
            ui.label(self.env_id).classes("text-xl font-medium")
            ui.label(f"policy of {told['algo']}" if self.has_policy else "you play").classes("opacity-80")
        with ui.row().classes("w-full gap-4 items-start"):
            with ui.column().classes("grow min-w-[18rem] basis-96 gap-3"):
                self.stage = ui.element("div").classes("mosaic-stage w-full").props("tabindex=0 role=application")
                self.stage.props["aria-label"] = f"{self.env_id}: the keys act here once you have taken over"
                with self.stage:
                    self.picture = ui.element("img").props('alt="The environment" data-testid=picture')
                self.stage.on("keydown", self._key_down, js_handler=LISTEN)
                self.stage.on("keyup", self._key_up, js_handler=LISTEN)
                self.stage.on("blur", lambda: self.held.clear())
                self.verdict = ui.label().classes("text-sm").props("role=status")
                self._draw_buttons()
                self.hands = ui.column().classes("w-full gap-2")
            with ui.column().classes("w-72 max-sm:w-full gap-3"):
                self._draw_numbers()

    def _draw_buttons(self) -> None:
        with ui.row().classes("items-center gap-2"):
            self.run_button = ui.button("Run", icon="play_arrow", on_click=self._toggle)
            ui.button("Step", icon="skip_next", on_click=self._one_step).props("outline")
            paces = ui.toggle(PACES, value=self.pace, on_change=lambda e: setattr(self, "pace", int(e.value)))
            paces.props('dense no-caps unelevated toggle-color=primary padding="4px 8px" aria-label="Steps a second"')
        with ui.row().classes("items-center gap-2"):
            self.seed_field = ui.number("Seed", precision=0, min=0, max=SEED_LIMIT - 1).props("dense outlined")
            self.seed_field.classes("w-32")
            ui.button("Reset", icon="restart_alt", on_click=self._reset_to_seed).props("outline")
            ui.button("Next", icon="navigate_next", on_click=lambda: self._guarded(self.reset(None))).props("flat")
            if self.has_policy:
                ui.switch("Greedy", value=self.session.greedy, on_change=lambda e: self.again(bool(e.value))).props(
                    'dense aria-label="Greedy: the best action instead of a sampled one"'
                )

    def _draw_controls(self) -> None:
        """Draw the player's controls; called once the action space is known."""
        with self.hands:
            if not self.controls.possible:
                with ui.row().classes("items-center gap-2 opacity-80"):
                    ui.icon("smart_toy").props("aria-hidden=true")
                    ui.label(self.controls.reason)
                self.yours = False
                return
            if self.has_policy:
                self.take = ui.button("Take over", icon="sports_esports", on_click=self._take_over)
                self.take.props("color=warning text-color=black")
            with ui.row().classes("gap-2 items-center") as self.keys_row:
                if self.controls.kind == "discrete":
                    self._draw_action_buttons()
                else:
                    self._draw_sliders()
            still = "" if self.controls.idle is not None else " Time stands still until you press a key."
            ui.label(f"Click the picture, then use the keys.{still}").classes("text-sm opacity-80")
        self._show_turn()

    def _draw_action_buttons(self) -> None:
        for number, name in enumerate(self.controls.names[: 2 * NUMBER_KEYS]):
            action = self.controls.start + number
            key = self.controls.key_of(action)
            label = f"{name}  {key}" if key else name
            ui.button(label, on_click=lambda a=action: self._act(a)).props("outline dense no-caps").classes("px-2")

    def _draw_sliders(self) -> None:
        self.sliders: list[ui.slider] = []
        for place, (low, high) in enumerate(zip(self.controls.low, self.controls.high, strict=True)):
            with ui.column().classes("gap-0 w-64"):
                ends = f"{self.controls.key_of(2 * place)} {low:g} … {high:g} {self.controls.key_of(2 * place + 1)}"
                ui.label(f"{self.controls.names[place]}: {ends}").classes("text-sm")
                slider = ui.slider(min=low, max=high, step=(high - low) / 100, value=self.controls.rest[place])
                self.sliders.append(slider.props(f'label aria-label="{self.controls.names[place]}"'))

    def _draw_numbers(self) -> None:
        self.numbers: dict[str, ui.label] = {}
        with ui.card().classes("w-full gap-1").props("flat bordered"):
            for name in ("Acts", "Step", "Reward", "Return", "Action", "Seed"):
                with ui.row().classes("w-full justify-between no-wrap"):
                    ui.label(name).classes("opacity-80")
                    self.numbers[name] = ui.label("–").classes("font-medium").props(f"data-number={name.lower()}")
        with ui.card().classes("w-full gap-1").props("flat bordered"):
            ui.label("Episodes").classes("font-medium")
            self.episodes = ui.column().classes("w-full gap-0 text-sm").props("data-testid=episodes")

    def _show(self, message: dict[str, Any]) -> None:
        picture = message.get("render_payload")
        if picture:
            self.picture.props["src"] = f"data:image/{picture['encoding']};base64,{picture['data']}"
            self.picture.update()
        self.numbers["Step"].text = str(int(message["step_index"]) + 1)
        self.numbers["Reward"].text = words.number(_number(message["reward"]))
        self.numbers["Return"].text = words.number(_number(message["episode_reward"]))
        self.numbers["Action"].text = self._action_told(message.get("action"))
        self._show_turn()

    def _action_told(self, action: Any) -> str:
        names, start = self.controls.names, self.controls.start
        if isinstance(action, int) and self.controls.kind == "discrete" and 0 <= action - start < len(names):
            return names[action - start]
        if isinstance(action, list):
            return ", ".join(words.number(_number(value), 3) for value in action[:4]) + (
                " …" if len(action) > 4 else ""
            )
        return "–" if action is None else str(action)

    def _note_episode(self, done: dict[str, Any], last: dict[str, Any]) -> None:
        how = "ended" if last.get("terminated") else "cut off by its step limit"
        told = f"return {words.number(_number(done['total_reward']))} in {done['episode_length']} steps"
        mine = f", {self.steps_of_yours} of them yours" if self.steps_of_yours and self.has_policy else ""
        self.verdict.text = f"The episode {how}: {told}{mine}."
        with self.episodes:
            ui.label(f"seed {self.seed}: {told}{mine}").move(target_index=0)
        for label in list(self.episodes)[SHOWN_EPISODES:]:
            self.episodes.remove(label)

    def _show_turn(self) -> None:
        self.numbers["Acts"].text = "you" if self.yours else "the policy"
        self.stage.classes(add="mosaic-yours" if self.yours else "", remove="" if self.yours else "mosaic-yours")
        if self.controls.possible and self.has_policy:
            self.take.text = "Hand back to the policy" if self.yours else "Take over"

    def _show_running(self, running: bool) -> None:
        self.running = running
        self.run_button.text = "Pause" if running else "Run"
        self.run_button.props(f"icon={'pause' if running else 'play_arrow'}")

    # Actions of the user

    def _toggle(self) -> None:
        self._show_running(not self.running)
        if self.running:
            background_tasks.create(self._loop(), name="game")
            self._focus()

    async def _one_step(self) -> None:
        self._show_running(False)
        if self.over:
            await self._guarded(self.reset(None))
        elif self.yours and self.controls.kind == "discrete" and not self.held:
            keys = "a key or one of the buttons"
            tell(f"it is your turn: press {keys}, or hand back to the policy" if self.has_policy else f"press {keys}",
                 kind="info")  # fmt: skip
        else:
            await self._guarded(self._turn())

    async def _reset_to_seed(self) -> None:
        given = self.seed_field.value
        if given is None or not 0 <= given < SEED_LIMIT or given != int(given):
            tell(ConfigError(f"a seed is a whole number from 0 to {SEED_LIMIT - 1}"))
            return
        await self._guarded(self.reset(int(given)))

    def _take_over(self) -> None:
        self.yours = not self.yours
        self.held.clear()
        self.taps.clear()
        self._show_turn()
        self._focus()

    async def _act(self, action: int) -> None:
        """Apply a button's action and take over."""
        self.yours = True
        self._show_turn()
        if not self.over:
            await self._guarded(self.step(action))

    async def _key_down(self, event: events.GenericEventArguments) -> None:
        key = str(event.args["key"])
        if not self.yours or key not in self.controls.keys:
            return
        if key in self.held:
            self.held.remove(key)
        self.held.append(key)
        if self.running:
            self.taps.append(key)
        elif not self.over:
            await self._guarded(self.step(self.controls.action([key])))

    def _key_up(self, event: events.GenericEventArguments) -> None:
        key = str(event.args["key"])
        if key in self.held:
            self.held.remove(key)

    def _sliders(self) -> list[float]:
        return [float(slider.value) for slider in self.sliders]

    def _focus(self) -> None:
        ui.run_javascript(f"getHtmlElement({self.stage.id}).focus()")

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except MosaicError as error:
            self._stop_for(error)

    def _stop_for(self, error: MosaicError) -> None:
        if self.session.closed:  # by the page itself: no user is left to notify
            return
        self._show_running(False)
        self.web.page_trouble(error)
        with self.stage:
            tell(error)


def _number(value: Any) -> float | None:
    """Return a number, which is a word where JSON lacks it (an infinity); None for anything else."""
    try:
        return float(str(value).replace("Infinity", "inf"))
    except ValueError:
        return None
