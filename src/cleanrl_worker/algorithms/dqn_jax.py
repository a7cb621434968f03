"""DQN in JAX for flat observations and discrete actions (Mnih et al. 2015). Siblings: dqn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cleanrl_worker.kit import envs as kit_envs
from cleanrl_worker.kit import experiment
from cleanrl_worker.kit.args import Amount, Count, CountFrom0, RunArgs, Share, parse, require
from cleanrl_worker.kit.buffers import ReplayBuffer, Transitions
from cleanrl_worker.kit.episodes import is_due
from cleanrl_worker.kit.policy import Policy

ACTION_SPACES = ("discrete",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict")


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "CartPole-v1"
    """environment to learn"""
    total_timesteps: Count = 500000
    """environment steps to train for, over all environments"""
    learning_rate: Amount = 2.5e-4
    """step size of Adam"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Count = 10000
    """transitions that the replay memory holds"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 1.0
    """share of the online network that enters the target network (1: a plain copy)"""
    target_network_frequency: Count = 500
    """steps between two updates of the target network"""
    batch_size: Count = 128
    """transitions per update"""
    start_e: Share = 1.0
    """share of random actions at the start"""
    end_e: Share = 0.05
    """share of random actions in the end"""
    exploration_fraction: Amount = 0.5
    """part of the run over which that share falls"""
    learning_starts: CountFrom0 = 10000
    """steps before the first update"""
    train_frequency: Count = 10
    """steps between two updates"""


class QNetwork(nn.Module):
    """Observation to the value of each action."""

    actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(120)(x))
        x = nn.relu(nn.Dense(84)(x))
        return nn.Dense(self.actions)(x)


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """From start to end over `duration` steps, then constant."""
    return max(end, start + (end - start) * step / max(duration, 1))


def numpy_policy(params: Any) -> Any:
    """The network in numpy for the few rows of an acting step: a jitted call costs more than it computes."""
    dense = [(np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for layer in params["params"].values()]

    def policy(x: np.ndarray) -> np.ndarray:
        for kernel, bias in dense[:-1]:
            x = np.maximum(x @ kernel + bias, 0.0)
        return x @ dense[-1][0] + dense[-1][1]

    return policy


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    layers = sorted({key.split("/")[1] for key in state})
    params = {name: {part: state[f"params/{name}/{part}"] for part in ("kernel", "bias")} for name in layers}
    values = numpy_policy({"params": params})
    epsilon = float(args.get("end_e", Args.end_e))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        actions = values(obs.astype(np.float32)).argmax(axis=1)
        if rng is None:
            return actions
        random_actions = rng.integers(0, spaces.single_action_space.n, len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, actions)

    return act


class JaxState:
    """Trees of arrays as a part of a checkpoint; their leaves are named by their paths."""

    def __init__(self, **trees: Any) -> None:
        self.trees = trees

    def state_dict(self) -> dict[str, np.ndarray]:
        leaves = jax.tree_util.tree_leaves_with_path(self.trees)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}

    def load_state_dict(self, state: Any) -> None:
        """Take the leaves that `state` has: a policy file has only `params`."""
        paths, structure = jax.tree_util.tree_flatten_with_path(self.trees)
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
        leaves = [jnp.asarray(state.get(name, leaf)) for name, (_, leaf) in zip(names, paths, strict=True)]
        self.trees = jax.tree_util.tree_unflatten(structure, leaves)


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    if not args.cuda:
        jax.config.update("jax_platforms", "cpu")
    run = experiment.start(args)
    envs = kit_envs.vector(args, run.video_folder)
    q_network = QNetwork(actions=int(envs.single_action_space.n))
    optimizer = optax.adam(args.learning_rate)

    @jax.jit  # compiled as one: operation by operation it takes seconds
    def init(seed: int) -> tuple[Any, Any]:
        params = q_network.init(jax.random.key(seed), jnp.zeros((1, *envs.single_observation_space.shape)))
        return params, optimizer.init(params)

    params, optimizer_state = init(args.seed % 2**31)  # JAX counts in 32 bits
    target_params = params
    buffer = ReplayBuffer(args.buffer_size, envs.single_observation_space.shape, (), np.int64)

    value_of: Callable[[Any, Any], jax.Array] = q_network.apply  # type: ignore[assignment]
    move_target = jax.jit(optax.incremental_update)

    @jax.jit
    def update(params: Any, target_params: Any, optimizer_state: Any, sample: Transitions) -> tuple[Any, Any, Any, Any]:
        target_max = value_of(target_params, sample.next_obs).max(axis=1)
        td_target = sample.rewards + args.gamma * (1.0 - sample.terminations) * target_max

        def mse_loss(params: Any) -> tuple[jax.Array, jax.Array]:
            values = value_of(params, sample.obs)
            taken = jnp.take_along_axis(values, sample.actions[:, None], axis=1).squeeze(1)
            return ((taken - td_target) ** 2).mean(), taken.mean()

        (loss, q_mean), gradients = jax.value_and_grad(mse_loss, has_aux=True)(params)
        changes, optimizer_state = optimizer.update(gradients, optimizer_state)
        return optax.apply_updates(params, changes), optimizer_state, loss, q_mean

    state = JaxState(params=params, target=target_params, optimizer=optimizer_state)
    step = run.restore({"policy": state}, buffer)
    params, target_params, optimizer_state = (state.trees[name] for name in ("params", "target", "optimizer"))
    policy = numpy_policy(params)
    obs = run.reset(envs, step)

    while step < args.total_timesteps:
        # 1 act
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, step)
        if run.rng.random() < epsilon:
            actions = run.rng.integers(0, envs.single_action_space.n, args.num_envs)
        else:
            actions = policy(obs).argmax(axis=1)
        reached = envs.step(actions)
        buffer.add(obs, actions, reached.rewards, reached.final_obs, reached.terminations)
        obs = reached.obs
        previous, step = step, step + args.num_envs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, partial(policy_arrays, params))

        # 2 learn
        if step > args.learning_starts and is_due(args.train_frequency, previous, step):
            sample = buffer.sample(args.batch_size, run.rng)
            params, optimizer_state, loss, q_mean = update(params, target_params, optimizer_state, sample)
            policy = numpy_policy(params)
            if is_due(100, previous, step):
                run.log(step, {"losses/td_loss": float(loss), "losses/q_values": float(q_mean)})
                run.log_speed(step)

        # 3 move the target network
        if step > args.learning_starts and is_due(args.target_network_frequency, previous, step):
            target_params = move_target(params, target_params, args.tau)

        # 4 checkpoint
        if run.checkpoint_due(previous, step):
            state.trees = {"params": params, "target": target_params, "optimizer": optimizer_state}
            obs = run.checkpoint(previous, step, envs)

    state.trees = {"params": params, "target": target_params, "optimizer": optimizer_state}
    if args.save_model:
        run.save_policy(step, policy_arrays(params))
        run.evaluate(step, load_policy(policy_arrays(params), envs, vars(args)))
    envs.close()
    run.finish(step)


def policy_arrays(params: Any) -> dict[str, np.ndarray]:
    """`params/Dense_0/kernel` and so on, as the policy file names them."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in leaves}


if __name__ == "__main__":
    main()
