"""PPO in JAX, an iteration as one compiled function, for flat, grid and image observations (arXiv:1707.06347).

Classic control is stepped inside that function, too (`envs/jax/classic.py`); EnvPool's environments are stepped in
one of their own (`envs/jax/pools.py`), all others from Python. Siblings: ppo, ppo_continuous_action.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from cleanrl_worker.nets.jax.trees import Trees, compiled, prepare, tree_of

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.atari import is_game
from cleanrl_worker.envs.jax import classic as classic_jax
from cleanrl_worker.envs.jax.classic import Classic, EpisodeProgress
from cleanrl_worker.envs.jax.pools import PoolRollouts, PoolStep, Standing, XlaPool
from cleanrl_worker.envs.minigrid import is_grid
from cleanrl_worker.envs.procgen import is_procgen
from cleanrl_worker.envs.views import shows_images, view_of
from cleanrl_worker.nets.jax.actor_critic import Agent, acting, first_params, fitting, forward, make_agent, network_of
from cleanrl_worker.run import training
from cleanrl_worker.run.args import (
    Amount,
    Computed,
    Count,
    CountFrom0,
    Pieces,
    RunArgs,
    Share,
    check_minibatches,
    parse,
    require,
)
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("discrete", "continuous")
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict", "grid", "image")
LOG_TWO_PI = float(np.log(2 * np.pi))

# Those of `envs.jax.classic`: their state is a few arrays.
SAVED_ENVIRONMENTS = ("CartPole-v0", "CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1")


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "CartPole-v1"
    """environment to learn"""
    total_timesteps: Count = 500000
    """environment steps to train for, over all environments"""
    num_threads: CountFrom0 = 0
    """CPU threads for the networks (0: all cores)"""
    network: Literal["auto", "separate", "grid", "image"] = "auto"
    """CleanRL's two networks, or convolutions; auto: grid for MiniGrid, image where there are pixels, else separate"""
    learning_rate: Amount = 2.5e-4
    """step size of Adam"""
    num_envs: Count = 4
    """environments stepped side by side"""
    num_steps: Count = 128
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.99
    """discount factor"""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Pieces = 4
    """pieces that a batch is cut into"""
    update_epochs: Count = 4
    """passes over a batch"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: Amount = 0.2
    """how far the new policy may move from the old (epsilon)"""
    clip_vloss: bool = True
    """clip the value loss too"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: Amount = 0.5
    """largest norm of the gradient"""
    target_kl: float | None = None
    """end an update early when the policy has moved this far"""
    batch_size: Computed = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: Computed = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: Computed = 0
    """set at run time: total_timesteps / batch_size"""


class Recipe(NamedTuple):
    """The numbers that an iteration is compiled with."""

    num_steps: int
    gamma: float
    gae_lambda: float
    minibatch_size: int
    update_epochs: int
    norm_adv: bool
    clip_coef: float
    clip_vloss: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None

    @classmethod
    def of(cls, args: Args) -> "Recipe":
        return cls(*(getattr(args, name) for name in cls._fields))


class Learner(NamedTuple):
    """What learning changes."""

    params: Any
    optimizer: Any


class Batch(NamedTuple):
    """A rollout, its axes (steps, environments, …), or rows of it."""

    obs: jax.Array
    actions: jax.Array
    rewards: jax.Array
    terminations: jax.Array
    ends: jax.Array
    next_obs: jax.Array
    """what each action led to, also where the episode ended there"""
    real: jax.Array | None = None
    """false where EnvPool only began an episode, which is nothing to learn from; None: nowhere"""


class Rows(NamedTuple):
    """What a minibatch learns from."""

    obs: jax.Array
    actions: jax.Array
    logprobs: jax.Array
    advantages: jax.Array
    returns: jax.Array
    values: jax.Array
    real: jax.Array | None


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The acting part of a saved agent; its keys tell which network it is."""
    params = tree_of(state)["params"]
    agent = make_agent(network_of(params), spaces)
    fitting(agent, params, spaces)
    outputs, space = acting(agent, params), spaces.single_action_space

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        scores = outputs(obs if agent.network == "image" else obs.astype(np.float32))
        if not agent.continuous:
            return (scores if rng is None else scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        if rng is not None:
            scores = scores + np.exp(params["actor_logstd"]) * rng.standard_normal(scores.shape)
        return np.clip(scores.reshape(-1, *space.shape), space.low, space.high).astype(space.dtype)

    return act


def gae(rewards: Any, values: Any, next_values: Any, ends: Any, gamma: float, lam: float) -> jax.Array:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16) over arrays of shape (steps, environments).

    `next_values` holds the value of what each action led to: 0 after a termination, of the final observation after a
    truncation. `ends` cuts the sum at the end of an episode.
    """
    deltas = rewards + gamma * next_values - values
    decay = gamma * lam * (1.0 - ends)

    def earlier(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = step[0] + step[1] * advantage
        return advantage, advantage

    return jax.lax.scan(earlier, jnp.zeros_like(deltas[0]), (deltas, decay), reverse=True, unroll=8)[1]


def _logprobs(agent: Agent, params: Any, outputs: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of the actions taken, and the entropy."""
    if agent.continuous:
        log_std = params["actor_logstd"]
        each = -0.5 * ((actions - outputs) * jnp.exp(-log_std)) ** 2 - log_std - 0.5 * LOG_TWO_PI
        return each.sum(axis=-1), jnp.broadcast_to((log_std + 0.5 + 0.5 * LOG_TWO_PI).sum(), each.shape[:-1])
    all_of_them = jax.nn.log_softmax(outputs)
    chosen = jnp.take_along_axis(all_of_them, actions[..., None], axis=-1).squeeze(-1)
    return chosen, -(jnp.exp(all_of_them) * all_of_them).sum(axis=-1)


def clipped_loss(params: Any, agent: Agent, recipe: Recipe, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """The loss (eq. 7 and 9) of a minibatch, and what is told of it: losses, k1, k3 and the share that was clipped."""
    advantages, mean = rows.advantages, partial(mean_of, real=rows.real)
    if recipe.norm_adv:
        count = advantages.size if rows.real is None else rows.real.sum()
        advantages = advantages - mean(advantages)
        advantages /= jnp.sqrt(mean(advantages**2) * count / jnp.maximum(count - 1, 1)) + 1e-8
    outputs, values = forward(agent, params, rows.obs)
    logprobs, entropy = _logprobs(agent, params, outputs, rows.actions)
    logratio = logprobs - rows.logprobs
    ratio = jnp.exp(logratio)
    clipped = jnp.clip(ratio, 1 - recipe.clip_coef, 1 + recipe.clip_coef)
    policy_loss = -mean(jnp.minimum(advantages * ratio, advantages * clipped))
    errors = (values - rows.returns) ** 2
    if recipe.clip_vloss:
        near = rows.values + jnp.clip(values - rows.values, -recipe.clip_coef, recipe.clip_coef)
        errors = jnp.maximum(errors, (near - rows.returns) ** 2)
    value_loss = 0.5 * mean(errors)
    loss = policy_loss - recipe.ent_coef * mean(entropy) + recipe.vf_coef * value_loss
    # http://joschu.net/blog/kl-approx.html
    approx_kl = mean(ratio - 1 - logratio)
    clipfrac = mean(jnp.abs(ratio - 1) > recipe.clip_coef)
    return loss, jnp.stack([value_loss, policy_loss, mean(entropy), -mean(logratio), approx_kl, clipfrac])


def mean_of(x: jax.Array, real: jax.Array | None) -> jax.Array:
    """Over the rows that are real."""
    return x.mean() if real is None else (x * real).sum() / jnp.maximum(real.sum(), 1)


TOLD = ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "explained_variance")


def optimizer_of(recipe: Recipe) -> optax.GradientTransformation:
    """On all parameters as one vector: a quarter faster than on twelve arrays, and sooner compiled."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(recipe.max_grad_norm), optax.scale_by_adam(eps=1e-5)))


def learn(agent: Agent, recipe: Recipe, learner: Learner, batch: Batch, orders: jax.Array, lr: jax.Array) -> Any:
    """Advantages and epochs: the learner after a batch, and the numbers that `TOLD` names.

    `orders` holds the rows of the batch in a new order for each epoch.
    """
    # 1 advantages
    params, steps = learner.params, batch.rewards.shape
    outputs, values = forward(agent, params, batch.obs)
    logprobs, _ = _logprobs(agent, params, outputs, batch.actions)
    next_values = forward(agent, params, batch.next_obs)[1] * (1.0 - batch.terminations)
    advantages = gae(batch.rewards, values, next_values, batch.ends, recipe.gamma, recipe.gae_lambda)
    parts = Rows(batch.obs, batch.actions, logprobs, advantages, advantages + values, values, batch.real)
    rows: Rows = jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), parts)

    # 2 update
    optimizer, count = optimizer_of(recipe), steps[0] * steps[1]
    whole = count - count % recipe.minibatch_size

    def update(learner: Learner, chosen: jax.Array) -> tuple[Learner, jax.Array]:
        some: Rows = jax.tree.map(lambda part: part[chosen], rows)
        gradients, told = jax.grad(clipped_loss, has_aux=True)(learner.params, agent, recipe, some)
        changes, state = optimizer.update(gradients, learner.optimizer)
        params = jax.tree.map(lambda param, change: param - lr * change, learner.params, changes)
        return Learner(params, state), told

    def epoch(learner: Learner, order: jax.Array) -> tuple[Learner, jax.Array]:
        learner, told = jax.lax.scan(update, learner, order[:whole].reshape(-1, recipe.minibatch_size))
        if whole < count:  # a last one with the rows that are left
            learner, last = update(learner, order[whole:])
            told = jnp.concatenate([told, last[None]])
        return learner, told

    def unless_far(carry: tuple[Learner, jax.Array], order: jax.Array) -> tuple[tuple[Learner, jax.Array], jax.Array]:
        """An epoch, unless the one before has moved the policy too far: then what that one told again."""
        learner, before = carry
        far = before[-1, TOLD.index("approx_kl")] > (recipe.target_kl or 0.0)
        learner, told = jax.lax.cond(far, lambda: (learner, before), lambda: epoch(learner, order))
        return (learner, told), told

    if recipe.target_kl is None:
        learner, told = jax.lax.scan(epoch, learner, orders)
    else:
        pieces = -(-count // recipe.minibatch_size)
        (learner, _), told = jax.lax.scan(unless_far, (learner, jnp.zeros((pieces, len(TOLD) - 1))), orders)
    variance, left = (
        mean_of((part - mean_of(part, rows.real)) ** 2, rows.real) for part in (rows.returns, rows.advantages)
    )
    explained = jnp.where(variance > 0, 1 - left / variance, jnp.nan)
    last = told[-1, -1].at[TOLD.index("clipfrac")].set(told[..., TOLD.index("clipfrac")].mean())
    return learner, jnp.append(last, explained)


def rollout(
    agent: Agent, classic: Classic, params: Any, progress: EpisodeProgress, starts: jax.Array, noise: jax.Array
) -> tuple[EpisodeProgress, Batch]:
    """Steps in environments that are part of the compiled function."""

    def step(progress: EpisodeProgress, drawn: tuple[jax.Array, jax.Array]) -> tuple[EpisodeProgress, Batch]:
        start, noise = drawn
        obs = classic.observe(progress.states)
        outputs, _ = forward(agent, params, obs)
        if agent.continuous:
            actions = outputs + jnp.exp(params["actor_logstd"]) * noise
        else:
            actions = (outputs + noise).argmax(axis=-1)  # Gumbel-max: a sample of softmax(logits)
        progress, reached = classic_jax.advance(classic, progress, actions, start)
        ends = (reached.terminations | reached.truncations).astype(jnp.float32)
        terminations = reached.terminations.astype(jnp.float32)
        return progress, Batch(obs, actions, reached.rewards, terminations, ends, reached.obs)

    return jax.lax.scan(step, progress, (starts, noise))


@partial(jax.jit, static_argnums=(0, 1))
def rollout_in_pool(
    agent: Agent, pool: XlaPool, standing: Standing, params: Any, noise: Any, bounds: Any
) -> tuple[Standing, tuple[Batch, PoolStep]]:
    """Steps in an EnvPool; it is compiled for one pool, and so kept apart from the learning, which is kept on disk."""

    def step(standing: Standing, noise: jax.Array) -> tuple[Standing, tuple[Batch, PoolStep]]:
        obs = standing.obs
        outputs, _ = forward(agent, params, obs)
        if agent.continuous:
            actions = outputs + jnp.exp(params["actor_logstd"]) * noise
            taken = jnp.clip(actions.reshape(-1, *bounds[0].shape), *bounds)
        else:
            taken = actions = (outputs + noise).argmax(axis=-1).astype(jnp.int32)
        standing, reached = pool.step(standing, taken)
        ends = (reached.terminations | reached.truncations).astype(jnp.float32)
        terminations = reached.terminations.astype(jnp.float32)
        batch = Batch(obs, actions, reached.rewards, terminations, ends, reached.obs, reached.real)
        return standing, (batch, reached._replace(obs=jnp.zeros(())))

    return jax.lax.scan(step, standing, noise)


class Iteration(NamedTuple):
    """What an iteration has led to, once JAX has computed it."""

    step: int
    """how many have been made at its end"""
    lr: np.float32
    learner: Learner
    told: jax.Array
    """the numbers that `TOLD` names"""
    counted: tuple[Any, ...] = ()
    """rewards and ends of each of its steps, whose episodes are still to be counted"""


class Draws(NamedTuple):
    """All that is random in an iteration, drawn at once by the run's own generator: a checkpoint holds its state."""

    noise: np.ndarray
    """on the actions: normal or, for discrete ones, Gumbel's"""
    orders: np.ndarray
    """the rows of the batch, shuffled for each epoch"""

    @classmethod
    def of(cls, rng: np.random.Generator, agent: Agent, args: Args) -> "Draws":
        shape = (args.num_steps, args.num_envs, agent.outputs)
        noise = rng.standard_normal(shape, np.float32) if agent.continuous else rng.gumbel(size=shape)
        rows = np.tile(np.arange(args.batch_size, dtype=np.int32), (args.update_epochs, 1))
        return cls(noise.astype(np.float32), rng.permuted(rows, axis=1))


@partial(jax.jit, static_argnums=(0, 1, 2))
def iterate(
    agent: Agent,
    recipe: Recipe,
    classic: Classic,
    learner: Learner,
    progress: EpisodeProgress,
    starts: Any,
    draws: Any,
    lr: Any,
) -> tuple[Learner, EpisodeProgress, jax.Array, jax.Array, jax.Array]:
    """A whole iteration: the learner, where the environments stand, rewards and ends of each step, what is told."""
    progress, batch = rollout(agent, classic, learner.params, progress, starts, draws.noise)
    learner, told = learn(agent, recipe, learner, batch, draws.orders, lr)
    return learner, progress, batch.rewards, batch.ends, told


@partial(jax.jit, static_argnums=(0, 1))
def learn_from(agent: Agent, recipe: Recipe, learner: Learner, batch: Batch, orders: Any, lr: Any) -> Any:
    """The learning part of an iteration whose environments are stepped outside."""
    return learn(agent, recipe, learner, batch, orders, lr)


def first_learner(agent: Agent, recipe: Recipe, space: Any, rng: np.random.Generator) -> Learner:
    obs = np.zeros((1, *space.shape), space.dtype if agent.network == "image" else np.float32)
    params = first_params(agent, obs, rng)
    return Learner(params, _first_moments(recipe, params))


@partial(jax.jit, static_argnums=0)
def _first_moments(recipe: Recipe, params: Any) -> Any:
    return optimizer_of(recipe).init(params)


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv:
        check_minibatches(args.batch_size, args.num_minibatches)
    if args.network == "auto":
        grid, classic = is_grid(args.env_id), args.env_id in classic_jax.CLASSICS
        images = not grid and not classic and shows_images(args.env_id)
        args.network = "grid" if grid else "image" if images else "separate"
    if is_procgen(args.env_id) and args.env_backend == "auto":
        args.env_backend = "envpool"  # nobody else makes them
    prepare(args)
    run = training.start(args)
    view, frames = view_of(args.env_id, vars(args)), args.network == "image" and is_game(args.env_id)
    # a network for other observations is refused where environments are made
    inside = classic_jax.make(args) if args.network == "separate" else None
    envs: Any
    if inside is not None:
        envs = classic_jax.watched(inside, args)
    else:
        envs = vectors.atari(args, run.video_folder) if frames else vectors.vector(args, run.video_folder, view)
    agent, recipe = make_agent(args.network, envs), Recipe.of(args)
    space, obs_shape = envs.single_action_space, envs.single_observation_space.shape
    learner = first_learner(agent, recipe, envs.single_observation_space, np.random.default_rng(args.seed))
    policy, optimizer = Trees(params=learner.params), Trees(adam=learner.optimizer)
    kept = {} if inside is None else {"envs": inside}  # their whole state is saved: they continue without a barrier
    step = run.restore({"policy": policy, "optimizer": optimizer, **kept})
    learner = Learner(policy.trees["params"], optimizer.trees["adam"])

    shape = (args.num_steps, args.num_envs)
    pixels = envs.single_observation_space.dtype if view or frames else np.float32
    rewards, terminations, ends = (np.zeros(shape, np.float32) for _ in range(3))
    obs, final_obs = (np.zeros((*shape, *obs_shape), pixels) for _ in range(2))
    actions: np.ndarray = np.zeros((*shape, agent.outputs), np.float32) if agent.continuous else np.zeros(shape, int)
    batch = Batch(obs, actions, rewards, terminations, ends, final_obs)  # type: ignore[arg-type]
    draws, lr = Draws.of(np.random.default_rng(0), agent, args), np.float32(0.0)
    pool = PoolRollouts(envs, rollout_in_pool, agent)
    bounds = (space.low.astype(np.float32), space.high.astype(np.float32)) if agent.continuous else None
    if pool.possible:
        blank = batch._replace(real=np.ones(shape, bool))  # type: ignore[arg-type]
        compiled("the update", lambda: learn_from(agent, recipe, learner, blank, draws.orders, lr))
    elif inside is None:
        compiled("the update", lambda: learn_from(agent, recipe, learner, batch, draws.orders, lr))
    else:
        world, begun, starts = inside.classic, inside.progress, inside.draw(np.random.default_rng(0), args.num_steps)
        compiled("the iteration", lambda: iterate(agent, recipe, world, learner, begun, starts, draws, lr))
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    next_obs = run.reset(envs, step)
    in_pool = pool.begin(next_obs, learner.params, draws.noise, bounds)
    untold: list[Iteration] = []

    def tell(done: Iteration) -> None:
        """Log an iteration."""
        if done.counted:
            paid, ended = map(np.asarray, done.counted)
            for t, episodes in envs.count(paid, ended > 0):
                run.log_episodes(done.step - args.batch_size + (t + 1) * args.num_envs, episodes)
        policy.trees, optimizer.trees = {"params": done.learner.params}, {"adam": done.learner.optimizer}
        losses = {f"losses/{name}": value for name, value in zip(TOLD, np.asarray(done.told).tolist(), strict=True)}
        run.log(done.step, {"charts/learning_rate": float(done.lr), **losses})
        run.log_speed(done.step)
        run.keep_best(done.step, policy.state_dict)

    while step < args.total_timesteps:
        share_left = 1.0 - step // args.batch_size / args.num_iterations if args.anneal_lr else 1.0
        lr = np.float32(args.learning_rate * share_left)
        draws = Draws.of(run.rng, agent, args)

        if inside is not None:
            # 1 collect and learn at once: JAX computes this iteration while the one before is told of
            starts = inside.draw(run.rng, args.num_steps)
            learner, inside.progress, paid, ended, told = iterate(
                agent, recipe, inside.classic, learner, inside.progress, starts, draws, lr
            )
            step += args.batch_size
            untold.append(Iteration(step, lr, learner, told, (paid, ended)))
            untold[0].told.block_until_ready()
        elif in_pool:
            # 1 collect   2 learn
            rolled, counted = pool(learner.params, draws.noise, bounds)
            learner, told = learn_from(agent, recipe, learner, rolled, draws.orders, lr)
            for t, episodes in pool.count(counted.paid, counted.over, counted.real):
                run.log_episodes(step + (t + 1) * args.num_envs, episodes)
            step += args.batch_size
            untold.append(Iteration(step, lr, learner, told))
        else:
            # 1 collect: act in numpy; values and probabilities follow for the whole batch at once
            outputs = acting(agent, learner.params)
            deviation = np.exp(np.asarray(learner.params["actor_logstd"])) if agent.continuous else 0.0
            for t in range(args.num_steps):
                obs[t] = next_obs
                scores = outputs(next_obs if args.network == "image" else next_obs.astype(np.float32))
                if agent.continuous:
                    actions[t] = scores + deviation * draws.noise[t]
                    taken = np.clip(actions[t].reshape(-1, *space.shape), space.low, space.high)
                else:
                    taken = actions[t] = (scores + draws.noise[t]).argmax(axis=1)
                reached = envs.step(taken)
                next_obs, final_obs[t] = reached.obs, reached.final_obs
                step += args.num_envs
                rewards[t], terminations[t] = reached.rewards, reached.terminations
                ends[t] = reached.terminations | reached.truncations
                if reached.episodes:
                    run.log_episodes(step, reached.episodes)
            # 2 learn
            learner, told = learn_from(agent, recipe, learner, batch, draws.orders, lr)
            untold.append(Iteration(step, lr, learner, told))

        # 3 log, checkpoint
        due = run.checkpoint_due(step)
        # the newest iteration may still be computed; it is told of when the next one is
        under_way = 1 if inside is not None and not due and step < args.total_timesteps else 0
        while len(untold) > under_way:
            tell(untold.pop(0))
        if due:
            next_obs = run.checkpoint(step, envs)
            in_pool = pool.begin(next_obs, learner.params, draws.noise, bounds)

    if args.save_model:
        run.save_policy(step, policy.state_dict())
        run.evaluate(step, load_policy(policy.state_dict(), envs, vars(args)), atari=frames, view=view)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
