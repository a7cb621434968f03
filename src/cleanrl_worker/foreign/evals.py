"""`cleanrl_utils.evals.*`: play a policy that a script just saved, and return the returns of its episodes."""

from __future__ import annotations

import os
import random
from argparse import Namespace
from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from .envs_023 import modern
from .vectors_029 import SyncVectorEnv

Act = Callable[[Any], Any]


def evaluate_dqn(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Any,
    device: Any = "cpu",
    epsilon: float = 0.05,
    capture_video: bool = True,
) -> List[Any]:
    import torch

    envs = _envs(make_env(env_id, 0, 0, capture_video, run_name))
    model = Model(envs).to(device)
    model.load_state_dict(torch.load(model_path, map_location=device, weights_only=True))
    model.eval()
    return _play(envs, eval_episodes, lambda obs: model(torch.Tensor(obs).to(device)).argmax(1).cpu().numpy(), epsilon)


def evaluate_c51(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Any,
    device: Any = "cpu",
    epsilon: float = 0.05,
    capture_video: bool = True,
) -> List[Any]:
    import torch

    envs = _envs(make_env(env_id, 0, 0, capture_video, run_name))
    saved = torch.load(model_path, map_location="cpu", weights_only=True)
    args = Namespace(**saved["args"])
    model = Model(envs, n_atoms=args.n_atoms, v_min=args.v_min, v_max=args.v_max)
    model.load_state_dict(saved["model_weights"])
    model = model.to(device)
    model.eval()
    return _play(
        envs, eval_episodes, lambda obs: model.get_action(torch.Tensor(obs).to(device))[0].cpu().numpy(), epsilon
    )


def evaluate_ppo(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Any,
    device: Any = "cpu",
    capture_video: bool = True,
    gamma: float = 0.99,
) -> List[Any]:
    import torch

    envs = _envs(make_env(env_id, 0, capture_video, run_name, gamma))
    agent = Model(envs).to(device)
    agent.load_state_dict(torch.load(model_path, map_location=device, weights_only=True))
    agent.eval()
    return _play(
        envs, eval_episodes, lambda obs: agent.get_action_and_value(torch.Tensor(obs).to(device))[0].cpu().numpy()
    )


def evaluate_actor(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Sequence[Any],
    device: Any = "cpu",
    capture_video: bool = True,
    exploration_noise: float = 0.1,
) -> List[Any]:
    """Play a policy of DDPG or TD3: the file holds the actor, then its critics, which do not act."""
    import torch

    envs = _envs(make_env(env_id, 0, 0, capture_video, run_name))
    actor = Model[0](envs).to(device)
    actor.load_state_dict(torch.load(model_path, map_location=device, weights_only=True)[0])
    actor.eval()
    space = envs.single_action_space

    def act(obs: Any) -> Any:
        actions = actor(torch.Tensor(obs).to(device))
        actions = actions + torch.normal(0, actor.action_scale * exploration_noise)
        return actions.cpu().numpy().clip(space.low, space.high)

    return _play(envs, eval_episodes, act)


def evaluate_dqn_jax(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Any,
    epsilon: float = 0.05,
    capture_video: bool = True,
    seed: int = 1,
) -> List[Any]:
    import flax
    import jax

    envs = _envs(make_env(env_id, 0, 0, capture_video, run_name))
    model = Model(action_dim=envs.single_action_space.n)
    params = model.init(jax.random.PRNGKey(seed), envs.reset()[0])
    params = flax.serialization.from_bytes(params, _bytes(model_path))
    apply = jax.jit(model.apply)
    return _play(envs, eval_episodes, lambda obs: np.asarray(apply(params, obs)).argmax(-1), epsilon)


def evaluate_c51_jax(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Any,
    epsilon: float = 0.05,
    capture_video: bool = True,
    seed: int = 1,
) -> List[Any]:
    import flax
    import jax

    envs = _envs(make_env(env_id, 0, 0, capture_video, run_name))
    saved = flax.serialization.from_bytes(None, _bytes(model_path))
    args = Namespace(**saved["args"])
    apply = jax.jit(Model(action_dim=envs.single_action_space.n, n_atoms=args.n_atoms).apply)
    atoms = np.linspace(args.v_min, args.v_max, num=args.n_atoms)
    return _play(
        envs,
        eval_episodes,
        lambda obs: (np.asarray(apply(saved["model_weights"], obs)) * atoms).sum(-1).argmax(-1),
        epsilon,
    )


def evaluate_actor_jax(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Sequence[Any],
    capture_video: bool = True,
    exploration_noise: float = 0.1,
    seed: int = 1,
) -> List[Any]:
    """Play a policy of DDPG or TD3: the file holds the actor, then its critics, which do not act."""
    import flax
    import jax

    envs = _envs(make_env(env_id, 0, 0, capture_video, run_name))
    space = envs.action_space
    actor = Model[0](
        action_dim=int(np.prod(envs.single_action_space.shape)),
        action_scale=np.array((space.high - space.low) / 2.0),
        action_bias=np.array((space.high + space.low) / 2.0),
    )
    fresh = actor.init(jax.random.PRNGKey(seed), envs.reset()[0])
    stored = flax.serialization.msgpack_restore(_bytes(model_path))  # a tuple, its parts keyed by number
    params = flax.serialization.from_state_dict(fresh, stored["0"])
    apply = jax.jit(actor.apply)
    single = envs.single_action_space
    noise = float(single.high[0]) * exploration_noise

    def act(obs: Any) -> Any:
        actions = np.asarray(apply(params, obs))
        return (actions + np.random.normal(0, noise, size=actions.shape)).clip(single.low, single.high)

    return _play(envs, eval_episodes, act)


def evaluate_ppo_envpool_jax(
    model_path: str,
    make_env: Any,
    env_id: str,
    eval_episodes: int,
    run_name: str,
    Model: Sequence[Any],
    capture_video: bool = True,
    seed: int = 1,
) -> List[Any]:
    import flax
    import jax

    envs = make_env(env_id, seed, num_envs=1)()
    network, actor = Model[0](), Model[1](action_dim=envs.single_action_space.n)
    stored = flax.serialization.msgpack_restore(_bytes(model_path))["1"]

    @jax.jit
    def act(obs: Any, key: Any) -> Any:
        logits = actor.apply(stored["1"], network.apply(stored["0"], obs))
        return jax.random.categorical(key, logits)

    key, returns = jax.random.PRNGKey(seed), []
    film = _film("videos/%s/0.mp4" % run_name) if capture_video else None
    for episode in range(eval_episodes):
        obs, total, ended = envs.reset(), 0.0, False
        while not ended:
            key, own = jax.random.split(key)
            obs, _, _, info = envs.step(np.asarray(act(obs, own)))
            total += float(info["reward"][0])
            ended = bool(info["terminated"][0] or info["TimeLimit.truncated"][0])
            if film is not None:
                film.add(np.repeat(obs[0][-1][:, :, None], 3, axis=2))
        if film is not None:
            film.close()
            film = None
        print("eval_episode=%d, episodic_return=%s" % (episode, total))
        returns.append(total)
    return returns


def _envs(thunk: Callable[[], Any]) -> Any:
    return SyncVectorEnv([lambda: modern(thunk())])


def _play(envs: Any, episodes: int, act: Act, epsilon: Optional[float] = None) -> List[Any]:
    """Return the returns of `episodes` episodes; with `epsilon`, an action is random with that probability."""
    obs, _ = envs.reset()
    returns: List[Any] = []
    with _no_gradients():
        while len(returns) < episodes:
            random_turn = epsilon is not None and random.random() < epsilon
            actions = np.array([envs.single_action_space.sample()]) if random_turn else np.asarray(act(obs))
            obs, _, _, _, infos = envs.step(actions)
            for info in infos.get("final_info", ()):
                if info and "episode" in info:
                    print("eval_episode=%d, episodic_return=%s" % (len(returns), info["episode"]["r"]))
                    returns.append(info["episode"]["r"])
    envs.close()
    return returns


def _no_gradients() -> Any:
    import torch

    return torch.no_grad()


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _film(path: str) -> Any:
    from . import film

    if film.av is None:
        return None
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return film.Film(path, 24)
