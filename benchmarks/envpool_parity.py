"""EnvPool against Gymnasium and ale-py: do they compute the same?

python benchmarks/envpool_parity.py                        # everything, some four minutes on 2 cores
python benchmarks/envpool_parity.py --only resets --resets 500
"""

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from backends import ATARI, CLASSIC, MUJOCO, ale_vector, pool, pool_step, random_actions
from grid_parity import GRIDS, same_episodes, same_layouts
from gymnasium.vector import AutoresetMode
from report import markdown, save

SIGNIFICANT = 0.01


def main() -> None:
    """Run the parts asked for, print their tables, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("dynamics", "resets", "returns", "atari", "grids"), help="one part only")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of each kind in dynamics and returns")
    parser.add_argument("--resets", type=int, default=2000, help="first observations of each kind")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "dynamics": lambda: [dynamics(env_id, args.episodes) for env_id in CLASSIC + MUJOCO],
        "resets": lambda: [resets(env_id, args.resets) for env_id in CLASSIC + MUJOCO],
        "returns": lambda: [returns(env_id, args.episodes) for env_id in CLASSIC + MUJOCO],
        "atari": lambda: [screens(env_id) for env_id in ATARI] + [atari_returns("Pong-v5", args.episodes)],
        "grids": lambda: [grids(env_id, args.episodes, args.resets) for env_id in GRIDS],
    }
    for name, part in parts.items():
        if args.only in (None, name):
            rows = part()
            print(f"\n## {name}\n\n{markdown(rows)}", flush=True)
            save("envpool_parity", {name: rows})


# -- the same state and actions -------------------------------------------------------------------------------------


def dynamics(env_id: str, episodes: int) -> dict[str, Any]:
    """Both measures of one task: every step from the same state, whole episodes from the same start."""
    at_most = 20 if env_id in MUJOCO else episodes  # a thousand steps each
    return {"env": env_id, **one_step(env_id, 5_000), **replay(env_id, min(episodes, at_most))}


def one_step(env_id: str, steps: int) -> dict[str, Any]:
    """Take EnvPool's steps again in Gymnasium, each from the state that EnvPool's observation showed before it."""
    env, envs = gym.make(env_id).unwrapped, pool(env_id, 1, seed=1)
    env.reset(seed=1)
    rng = np.random.default_rng(1)
    differences: list[float] = []
    ends = agreed = 0
    observation = envs.reset()[0][0]
    for step in range(steps):
        action = action_for(env_id, observation, env.action_space, rng, clever=step // 500 % 2 == 1)
        known = set_state(env, env_id, observation)
        following, final, _, terminated, truncated = pool_step(envs, action[None])
        if known:
            peer, _, peer_terminated, _, _ = env.step(action)
            differences.append(float(np.abs(peer - final[0]).max()))
            # At the time limit EnvPool reports a termination as a truncation.
            if (terminated[0] or peer_terminated) and not truncated[0]:
                ends += 1
                agreed += bool(terminated[0]) == bool(peer_terminated)
        observation = following[0]
    return {
        "steps": len(differences),
        "Δobs median": float(np.median(differences)),
        "Δobs max": max(differences),
        "terminations agreed": f"{agreed}/{ends}",
    }


def replay(env_id: str, episodes: int) -> dict[str, Any]:
    """Play EnvPool's episodes in Gymnasium from the same start with the same actions, never corrected."""
    env, envs = gym.make(env_id), pool(env_id, 1, seed=2)
    rng = np.random.default_rng(2)
    lengths, peer_lengths, apart, reward_differences = [], [], [], [0.0]
    goal = (
        env_id != "CartPole-v1"
    )  # a pole balanced by the other's actions falls: rounding errors grow without feedback
    observation = envs.reset()[0][0]
    for episode in range(episodes):
        env.reset()
        set_state(env, env_id, observation)
        length = peer_length = first_apart = 0
        over = False
        while not over:
            action = action_for(env_id, observation, env.action_space, rng, clever=goal and episode % 2 == 1)
            following, final, reward, terminated, truncated = pool_step(envs, action[None])
            observation, over, length = following[0], bool(terminated[0] or truncated[0]), length + 1
            if peer_length:
                continue
            peer, peer_reward, peer_terminated, peer_truncated, _ = env.step(action)
            peer_length = length if peer_terminated or peer_truncated else 0
            if not first_apart and float(np.abs(peer - final[0]).max()) > 0.01:
                first_apart = length
            # The first reward holds a velocity from body positions that set_state made newer than a step would have.
            if not first_apart and length > 1:
                reward_differences.append(abs(float(peer_reward) - float(reward[0])))
        lengths.append(length)
        peer_lengths.append(peer_length)
        apart.append(first_apart or length + 1)
    same = sum(a == b for a, b in zip(lengths, peer_lengths, strict=True))
    never = sum(a > n for a, n in zip(apart, lengths, strict=True))
    return {
        "same length": f"{same}/{episodes}",
        "never 0.01 apart": f"{never}/{episodes}",
        "median step when apart": float(np.median(apart)) if never < episodes else None,
        "Δreward until then": max(reward_differences),
        "longest": max(lengths),
    }


def action_for(
    env_id: str, obs: np.ndarray, space: gym.Space[Any], rng: np.random.Generator, clever: bool
) -> np.ndarray:
    """A random action, or one that reaches the end which chance does not: the goal, or CartPole's time limit."""
    if clever and env_id == "CartPole-v1":
        return np.array(int(obs[2] + 0.5 * obs[3] > 0))
    if clever and env_id in ("MountainCar-v0", "Acrobot-v1"):
        return np.array(2 if obs[-1] >= 0 else 0)  # push along the motion
    if clever and env_id == "MountainCarContinuous-v0":
        return np.array([1.0 if obs[1] >= 0 else -1.0], np.float32)
    return random_actions(space, rng)


def set_state(env: Any, env_id: str, observation: np.ndarray) -> bool:
    """Put a Gymnasium environment into the state that an observation shows; False where it does not show it."""
    inner, obs = env.unwrapped, observation.astype(np.float64)
    if env_id not in MUJOCO:
        if env_id == "Acrobot-v1":
            obs = np.array([math.atan2(obs[1], obs[0]), math.atan2(obs[3], obs[2]), obs[4], obs[5]])
        elif env_id == "Pendulum-v1":
            obs = np.array([math.atan2(obs[1], obs[0]), obs[2]])
        inner.state = obs
        inner.steps_beyond_terminated = None
        return True
    nq, nv = inner.model.nq, inner.model.nv
    hidden = {"InvertedPendulum-v5": 0, "Swimmer-v5": 2, "Ant-v5": 2}.get(env_id, 1)  # x (and y) are not observed
    qpos = np.concatenate([np.zeros(hidden), obs[: nq - hidden]])
    qvel = obs[nq - hidden : nq - hidden + nv]
    inner.set_state(qpos, qvel)
    return not (env_id in ("Hopper-v5", "Walker2d-v5") and np.abs(qvel).max() >= 10)  # velocities are clipped there


def resets(env_id: str, count: int) -> dict[str, Any]:
    """Spaces, and the distribution of first observations."""
    env, envs = gym.make(env_id), pool(env_id, count, seed=1)
    theirs = envs.reset()[0].astype(np.float64)
    ours = np.stack([env.reset(seed=seed)[0] for seed in range(count)]).astype(np.float64)
    varying = [i for i in range(ours.shape[1]) if np.ptp(ours[:, i]) > 0 or np.ptp(theirs[:, i]) > 0]
    p_values = [kolmogorov_smirnov(ours[:, i], theirs[:, i]) for i in varying]
    least = min(1.0, min(p_values) * len(p_values))  # Bonferroni
    constant = all(np.allclose(ours[0, i], theirs[0, i], atol=1e-6) for i in set(range(ours.shape[1])) - set(varying))
    return {
        "env": env_id,
        "observations": f"{env.observation_space.dtype} / {envs.observation_space.dtype}",
        "same bounds": same_box(env.observation_space, envs.observation_space),
        "same actions": same_box(env.action_space, envs.action_space),
        "action dtype": f"{env.action_space.dtype} / {envs.action_space.dtype}",
        "limit": f"{env.spec.max_episode_steps if env.spec else None} / {envs.config['max_episode_steps']}",
        "p of resets": least,
        "same": bool(least > SIGNIFICANT and constant),
    }


def returns(env_id: str, episodes: int) -> dict[str, Any]:
    """Returns and lengths of the uniformly random policy, by a two-sample test."""
    peer: Any = gym.make_vec(
        env_id, num_envs=10, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
    )
    peer.reset(seed=1)
    envs = pool(env_id, 10, seed=1)
    envs.reset()
    ours = play(lambda actions: peer.step(actions)[1:4], peer.single_action_space, 10, episodes)
    theirs = play(lambda actions: pool_step(envs, actions)[2:5], envs.action_space, 10, episodes)
    return compare_returns(env_id, ours, theirs)


def play(step: Callable[[np.ndarray], Any], space: gym.Space[Any], num_envs: int, episodes: int) -> np.ndarray:
    """(return, length) of the first `episodes / num_envs` episodes of each environment: short ones are not favoured."""
    rng = np.random.default_rng(3)
    each = math.ceil(episodes / num_envs)
    finished: list[list[tuple[float, int]]] = [[] for _ in range(num_envs)]
    totals, lengths = np.zeros(num_envs), np.zeros(num_envs, int)
    while min(map(len, finished)) < each:
        reward, terminated, truncated = step(random_actions(space, rng, num_envs))
        totals += reward
        lengths += 1
        for i in np.flatnonzero(terminated | truncated):
            finished[i].append((float(totals[i]), int(lengths[i])))
            totals[i], lengths[i] = 0, 0
    return np.array([episode for env in finished for episode in env[:each]])


def compare_returns(env_id: str, ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """A row with both means and the p-values of the two-sample tests."""
    p_return, p_length = (kolmogorov_smirnov(ours[:, i], theirs[:, i]) for i in (0, 1))
    return {
        "env": env_id,
        "episodes": f"{len(ours)} / {len(theirs)}",
        "return Gymnasium": f"{ours[:, 0].mean():.2f} ± {ours[:, 0].std():.2f}",
        "return EnvPool": f"{theirs[:, 0].mean():.2f} ± {theirs[:, 0].std():.2f}",
        "length Gymnasium": float(ours[:, 1].mean()),
        "length EnvPool": float(theirs[:, 1].mean()),
        "p return": p_return,
        "p length": p_length,
        "same": bool(min(p_return, p_length) * 2 > SIGNIFICANT),
    }


# -- Atari ----------------------------------------------------------------------------------------------------------


def screens(env_id: str, steps: int = 5_000) -> dict[str, Any]:
    """The same actions in EnvPool and in ale-py's vector environment, screen by screen."""
    envs = pool(env_id, 1, seed=1, noop_max=1, reward_clip=True)  # 1 is the least: no no-op before FIRE
    peer = ale_vector(env_id, 1, AutoresetMode.NEXT_STEP, noop_max=0)
    rng = np.random.default_rng(1)
    first, peer_first = envs.reset()[0], peer.reset(seed=1)[0]
    newest = stacks = events = at_end = games = 0
    since = 0
    for _ in range(steps):
        action = random_actions(envs.action_space, rng, 1)
        ours, reward, terminated, truncated, _ = envs.step(action)
        theirs, peer_reward, peer_terminated, peer_truncated, _ = peer.step(action)
        over = bool(terminated[0] or truncated[0])
        games += over
        same = bool((ours[0, -1] == theirs[0, -1]).all())
        newest += same
        at_end += over and not same
        since = 0 if over else since + 1
        stacks += since > 4 and bool((ours == theirs).all())
        ends_agree = terminated[0] == peer_terminated[0] and truncated[0] == peer_truncated[0]
        events += bool(reward[0] == peer_reward[0] and ends_agree)
    return {
        "env": env_id,
        "steps": steps,
        "newest screen equal": f"{newest}/{steps}",
        "unequal at a game's last step": at_end,
        "reward and end equal": f"{events}/{steps}",
        "games": games,
        "stack at a reset": f"{padding(peer_first[0])} / {padding(first[0])}",
    }


def padding(stack: np.ndarray) -> str:
    """How the older screens of a first observation are filled."""
    return "zeros" if not stack[0].any() else "the first screen" if (stack[0] == stack[-1]).all() else "other"


def atari_returns(env_id: str, episodes: int) -> dict[str, Any]:
    """Scores of the uniformly random policy with CleanRL's settings (30 no-ops, no sticky actions)."""
    peer = ale_vector(env_id, 10, AutoresetMode.SAME_STEP, noop_max=30, reward_clipping=False)
    peer.reset(seed=1)
    envs = pool(env_id, 10, seed=1)
    envs.reset()
    ours = play(lambda actions: peer.step(actions)[1:4], envs.action_space, 10, episodes)
    theirs = play(lambda actions: pool_step(envs, actions)[2:5], envs.action_space, 10, episodes)
    return compare_returns(env_id, ours, theirs)


# -- MiniGrid and BabyAI --------------------------------------------------------------------------------------------


def grids(env_id: str, episodes: int, resets: int) -> dict[str, Any]:
    """Whole episodes from the same state, and whether both draw their layouts from the same distribution."""
    row = same_episodes(env_id, episodes)
    ours, theirs = same_layouts(env_id, min(resets, 1500))
    varying = [i for i in range(ours.shape[1]) if np.ptp(ours[:, i]) > 0 or np.ptp(theirs[:, i]) > 0]
    least = (
        min(1.0, min(kolmogorov_smirnov(ours[:, i], theirs[:, i]) for i in varying) * len(varying)) if varying else 1.0
    )
    constant = bool((ours[0] == theirs[0])[[i for i in range(ours.shape[1]) if i not in varying]].all())
    return row | {"p of layouts": least, "same": row["same"] and constant and least > SIGNIFICANT}


# -- small parts ----------------------------------------------------------------------------------------------------


def same_box(ours: gym.Space[Any], theirs: gym.Space[Any]) -> bool:
    """Whether two spaces allow the same values, dtype aside."""
    if isinstance(ours, gym.spaces.Discrete) and isinstance(theirs, gym.spaces.Discrete):
        return int(ours.n) == int(theirs.n)
    if not (isinstance(ours, gym.spaces.Box) and isinstance(theirs, gym.spaces.Box)) or ours.shape != theirs.shape:
        return False
    big = 1e30  # some spaces write their infinities as the largest float
    bounds = [np.clip(np.stack([box.low, box.high]).astype(float), -big, big) for box in (ours, theirs)]
    return np.allclose(*bounds)


def kolmogorov_smirnov(a: np.ndarray, b: np.ndarray) -> float:
    """The asymptotic two-sided p-value of "both come from one distribution"."""
    values = np.sort(np.concatenate([a, b]))
    cdf_a = np.searchsorted(np.sort(a), values, side="right") / len(a)
    cdf_b = np.searchsorted(np.sort(b), values, side="right") / len(b)
    root = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    scaled = (root + 0.12 + 0.11 / root) * float(np.abs(cdf_a - cdf_b).max())
    if scaled < 0.3:  # the series converges slowly there, and p is 1 to six digits
        return 1.0
    p = 2 * sum((-1.0) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, p))


if __name__ == "__main__":
    main()
