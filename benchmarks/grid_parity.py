"""MiniGrid and BabyAI in EnvPool against the originals: whole episodes from the same state, and the layouts drawn."""

import contextlib
import io
import re
from typing import Any

import gymnasium as gym
import minigrid
import numpy as np
from backends import pool
from minigrid.core.grid import Grid
from minigrid.core.world_object import Door, WorldObj
from minigrid.envs.babyai.core import verifier

gym.register_envs(minigrid)

GRIDS = (
    *("MiniGrid-Empty-8x8-v0", "MiniGrid-Empty-Random-6x6-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-6x6-v0"),
    *("MiniGrid-DoorKey-8x8-v0", "MiniGrid-DoorKey-16x16-v0", "MiniGrid-FourRooms-v0", "MiniGrid-LavaGapS7-v0"),
    *("MiniGrid-SimpleCrossingS9N2-v0", "MiniGrid-MultiRoom-N2-S4-v0", "MiniGrid-MultiRoom-N4-S5-v0"),
    *("MiniGrid-Unlock-v0", "MiniGrid-BlockedUnlockPickup-v0", "MiniGrid-KeyCorridorS3R1-v0", "MiniGrid-MemoryS7-v0"),
    *("MiniGrid-Fetch-5x5-N2-v0", "MiniGrid-GoToDoor-5x5-v0"),
    *(
        "BabyAI-GoToRedBallNoDists-v0",
        "BabyAI-GoToRedBall-v0",
        "BabyAI-GoToRedBallGrey-v0",
        "BabyAI-GoToObj-v0",
        "BabyAI-GoToLocal-v0",
    ),
    *("BabyAI-PickupDist-v0", "BabyAI-OpenRedDoor-v0", "BabyAI-UnlockLocal-v0"),
)
# left, right, forward, pick up, drop, toggle, done: one that walks, so that random episodes reach something
WALK = (0.17, 0.17, 0.4, 0.09, 0.03, 0.1, 0.04)
VERBS = {"go to": verifier.GoToInstr, "pick up": verifier.PickupInstr, "open": verifier.OpenInstr}


def same_episodes(env_id: str, episodes: int) -> dict[str, Any]:
    """Play EnvPool's episodes in MiniGrid from the same first state with the same actions, never corrected."""
    env: Any = gym.make(env_id).unwrapped
    envs = pool(env_id, 1, seed=1)
    rng = np.random.default_rng(1)
    seen = rewards = ends = steps = paid = first_seen = 0
    obs = envs.reset()[0]
    for _ in range(episodes):
        put_state(env, envs.debug_states([0])[0])
        first_seen += alike(env.gen_obs(), obs)
        over = False
        while not over:
            action = int(rng.choice(7, p=WALK))
            obs, reward, terminated, truncated, _ = envs.step(np.array([action]))
            peer, peer_reward, peer_terminated, peer_truncated, _ = env.step(action)
            over = bool(terminated[0] or truncated[0])
            steps += 1
            seen += alike(peer, obs)
            rewards += bool(abs(reward[0] - peer_reward) < 1e-6)
            ends += over == bool(peer_terminated or peer_truncated) and bool(terminated[0]) == bool(peer_terminated)
            paid += bool(peer_reward > 0)
            if over != bool(peer_terminated or peer_truncated):
                obs = envs.reset()[0]
                break
        else:
            obs = envs.step(np.array([0]))[0]  # EnvPool's own reset
    return {
        "env": env_id,
        "episodes": episodes,
        "steps": steps,
        "first view equal": f"{first_seen}/{episodes}",
        "view, direction, mission equal": f"{seen}/{steps}",
        "reward equal": f"{rewards}/{steps}",
        "end equal": f"{ends}/{steps}",
        "rewarded": paid,
        "same": min(seen, rewards, ends) == steps and first_seen == episodes,
    }


def same_layouts(env_id: str, resets: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of the first states of both: the agent, and how many of each kind of object lie where."""
    env: Any = gym.make(env_id).unwrapped
    ours = []
    with contextlib.redirect_stdout(io.StringIO()):
        for seed in range(resets):
            env.reset(seed=seed)
            ours.append(features(env.grid.encode(), env.agent_pos, env.agent_dir))
    envs = pool(env_id, resets, seed=1)
    envs.reset()
    states = envs.debug_states(list(range(resets)))
    theirs = [features(cells_of(state), state.agent_pos, state.agent_dir) for state in states]
    return np.array(ours), np.array(theirs)


def features(cells: np.ndarray, position: Any, direction: int) -> list[float]:
    found = [float(position[0]), float(position[1]), float(direction)]
    for kind in (2, 4, 5, 6, 7, 8, 9):  # wall, door, key, ball, box, goal, lava
        xs, ys = np.nonzero(cells[:, :, 0] == kind)
        colours = cells[xs, ys, 1]
        found += [len(xs), xs.mean() if len(xs) else -1, ys.mean() if len(ys) else -1, colours.sum()]
    return found


def cells_of(state: Any) -> np.ndarray:
    """As `Grid.encode` gives them: columns first."""
    return np.array(state.grid).reshape(state.width, state.height, 3)


def alike(peer: dict[str, Any], obs: dict[str, Any]) -> bool:
    text = obs["mission"][0].tobytes().rstrip(b"\0").decode()
    same_view = bool((peer["image"] == obs["image"][0]).all())
    return same_view and int(peer["direction"]) == int(obs["direction"][0]) and peer["mission"] == text


def put_state(env: Any, state: Any) -> None:
    """Put a MiniGrid environment into the state that EnvPool's pool says it is in."""
    with contextlib.redirect_stdout(io.StringIO()):
        env.reset()
    env.width, env.height, env.grid = state.width, state.height, Grid(state.width, state.height)
    contents = np.array(state.grid_contains).reshape(state.width, state.height, -1)
    cells = cells_of(state)
    for x, y in np.ndindex(state.width, state.height):
        thing = WorldObj.decode(*cells[x, y])
        if thing is not None and contents[x, y].any():
            thing.contains = WorldObj.decode(*contents[x, y][-3:])
        if thing is not None:
            thing.init_pos = thing.cur_pos = np.array((x, y))
        env.grid.set(x, y, thing)
    env.agent_pos, env.agent_dir, env.carrying, env.step_count = np.array(state.agent_pos), state.agent_dir, None, 0
    env.max_steps, env.mission = state.max_steps, state.mission
    put_task(env, state)


def put_task(env: Any, state: Any) -> None:
    """What each task keeps besides the grid: its door, its object, its instruction."""
    things = [thing for thing in env.grid.grid if thing is not None]
    if env.spec.id.startswith("BabyAI-"):
        verb, colour, kind = re.findall(r"^(go to|pick up|open) (?:the|a)(?: (\w+))? (\w+)$", state.mission)[0]
        env.instrs = VERBS[verb](verifier.ObjDesc(None if kind == "object" else kind, colour or None))
        env.instrs.reset_verifier(env)
    if hasattr(env, "door"):
        env.door = next(thing for thing in things if isinstance(thing, Door))
    if hasattr(env, "obj"):
        kind, colour = state.mission.split()[-1], state.mission.split()[-2]
        env.obj = next(thing for thing in things if (thing.type, thing.color) == (kind, colour))
    if hasattr(env, "success_pos"):
        env.success_pos, env.failure_pos = state.success_pos, state.failure_pos
    if hasattr(env, "targetType"):
        env.targetColor, env.targetType = state.mission.split()[-2:]
    if hasattr(env, "target_pos"):
        env.target_pos = state.target_pos
