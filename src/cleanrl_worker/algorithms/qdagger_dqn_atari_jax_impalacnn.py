"""QDagger in JAX for Atari games: an IMPALA network that begins with what a trained DQN knows (arXiv:2206.01626).

The teacher plays first and fills the memory; the student then learns offline from it, then online from its own games,
where the teacher counts ever less. Siblings: qdagger_dqn_atari_impalacnn, dqn_atari_jax.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cleanrl_worker.nets.jax.trees import Trees, arrays_of, compiled, first_params, outputs_of, params_of, prepare

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cleanrl_worker.envs import play, vectors
from cleanrl_worker.envs.episodes import is_due
from cleanrl_worker.learn import dqn_files
from cleanrl_worker.learn.buffers import Transitions
from cleanrl_worker.learn.frame_buffer import FrameReplay
from cleanrl_worker.learn.teachers import load_teacher, only_offline
from cleanrl_worker.nets.jax.images import TORCH_PADDING, ImpalaNetwork, NatureNetwork
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Count, CountFrom0, Limits, RunArgs, Share, Stacks, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("discrete",)
OBSERVATION_SPACES = ("image",)
FAMILIES = ("atari", "image-games")
DEFAULT_BACKEND = "envpool"


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "BreakoutNoFrameskip-v4"
    """game to learn: Breakout-v5, ALE/Breakout-v5 or BreakoutNoFrameskip-v4 are the same here"""
    total_timesteps: Count = 10000000
    """steps to train for: the offline ones, then those in the environments (a step is four frames)"""
    checkpoint_every: CountFrom0 = 150000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: all cores; a convolution is worth them)"""
    learning_rate: Amount = 1e-4
    """step size of Adam"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Stacks = 1000000
    """transitions that the replay memory holds (a million takes 7.6 GB)"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 1.0
    """share of the online network that enters the target network (1: a plain copy)"""
    target_network_frequency: Count = 1000
    """environment steps between two updates of the target network, over all environments"""
    batch_size: Count = 32
    """transitions per update"""
    start_e: Share = 1.0
    """share of random actions at the start"""
    end_e: Share = 0.01
    """share of random actions in the end"""
    exploration_fraction: Amount = 0.1
    """part of the run over which that share falls"""
    learning_starts: CountFrom0 = 80000
    """steps before the first update"""
    train_frequency: Count = 4
    """steps between two updates online"""
    teacher_policy_path: Path | None = None
    """policy of the teacher, a DQN or QDagger for Atari of ours or CleanRL's, torch or JAX (None: from the hub)"""
    teacher_policy_hf_repo: str | None = None
    """repository of the teacher on the Hugging Face hub (None: cleanrl/<env_id>-<teacher_model_exp_name>-seed1)"""
    teacher_model_exp_name: str = "dqn_atari_jax"
    """name of the teacher's policy file there"""
    teacher_eval_episodes: Count = 10
    """games that tell how good the teacher is, and later how good the student"""
    teacher_steps: Count = 500000
    """steps that the teacher plays for the student to learn from"""
    offline_steps: CountFrom0 = 500000
    """updates from what the teacher played, before the student plays itself; they count as steps of total_timesteps"""
    temperature: Annotated[float, Limits(above=0)] = 1.0
    """the higher, the more of the teacher's second choices is learned"""


class Teacher(NamedTuple):
    """A network that has learned."""

    network: NatureNetwork | ImpalaNetwork
    params: Any


def teacher_network(state: dqn_files.State, envs: Any) -> Teacher:
    """The network that a file's names are of, with its weights."""
    actions = int(envs.single_action_space.n)
    network: NatureNetwork | ImpalaNetwork = NatureNetwork(actions)
    if dqn_files.layers_of(state) is dqn_files.IMPALA:
        network = ImpalaNetwork(actions) if dqn_files.is_flax(state) else ImpalaNetwork(actions, TORCH_PADDING)
    return Teacher(network, params_of(network, dqn_files.as_flax(state), blank_obs(envs)))


def blank_obs(envs: Any) -> np.ndarray:
    return np.zeros((1, *envs.single_observation_space.shape), np.uint8)


class Lesson:
    """How good the teacher is, and how good the student has become."""

    def __init__(self) -> None:
        self.teacher_return = float("nan")
        self.student_returns: deque[float] = deque(maxlen=10)

    def weight(self) -> float:
        """What the teacher's opinion counts: 1 at first, 0 when the student is as good."""
        if len(self.student_returns) < 10:
            return 1.0
        student = float(np.mean(self.student_returns))
        if self.teacher_return <= 0:  # a share of it says nothing
            return float(student < self.teacher_return)
        return min(1.0, max(0.0, 1.0 - student / self.teacher_return))

    def state_dict(self) -> dict[str, Any]:
        return {"teacher_return": np.float64(self.teacher_return), "student_returns": np.array(self.student_returns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.teacher_return = float(state["teacher_return"])
        self.student_returns.extend(float(value) for value in state["student_returns"])


@partial(jax.jit, static_argnums=0)
def values_of(network: nn.Module, params: Any, obs: np.ndarray) -> jax.Array:
    return outputs_of(network, params, obs)


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    network = ImpalaNetwork(int(spaces.single_action_space.n))
    return epsilon_greedy(network, params_of(network, state, blank_obs(spaces)), float(args.get("end_e", Args.end_e)))


def epsilon_greedy(network: nn.Module, params: Any, epsilon: float) -> Policy:
    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        values = np.asarray(values_of(network, params, obs))
        if rng is None:
            return values.argmax(axis=1)
        random_actions = rng.integers(0, values.shape[1], len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, values.argmax(axis=1))

    return act


def mean_return(network: nn.Module, params: Any, args: Args, say: Callable[[str], None]) -> float:
    """Of a few whole games with raw rewards."""
    policy = epsilon_greedy(network, params, args.end_e)
    game = play.make_game(args.env_id, atari=True, backend=args.env_backend)
    returns: list[float] = []

    def tell(length: int) -> None:
        say(f"seeing how good it is: game {len(returns) + 1} of {args.teacher_eval_episodes}, step {length:,}")

    for episode in range(args.teacher_eval_episodes):
        seed = play.episode_seed(args.seed, episode)
        played = play.play_episode(policy, game, episode, seed, max_steps=training.EVAL_MAX_STEPS, tell=tell)
        returns += [played.ret] if played else []
    game.close()
    return float(np.mean(returns))


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """From start to end over `duration` steps, then constant."""
    return max(end, start + (end - start) * step / max(duration, 1))


class Recipe(NamedTuple):
    """The numbers that an update is compiled with."""

    learning_rate: float
    gamma: float
    temperature: float

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


class Learner(NamedTuple):
    """What learning changes."""

    params: Any
    target: Any
    optimizer: Any


class Losses(NamedTuple):
    """What an update tells of its batch."""

    loss: jax.Array
    distill_loss: jax.Array
    td_loss: jax.Array
    q_values: jax.Array


@partial(jax.jit, static_argnums=(0, 1, 2))
def update(
    network: ImpalaNetwork,
    teacher_network: NatureNetwork | ImpalaNetwork,
    recipe: Recipe,
    learner: Learner,
    teacher_params: Any,
    sample: Transitions,
    weight: Any,
) -> tuple[Learner, Losses]:
    """The learner after a batch in which the teacher's opinion counts `weight`."""
    next_values = outputs_of(network, learner.target, sample.next_obs)
    td_target = sample.rewards + recipe.gamma * (1.0 - sample.terminations) * next_values.max(axis=1)
    opinion = jax.nn.log_softmax(outputs_of(teacher_network, teacher_params, sample.obs) / recipe.temperature)

    def both_losses(params: Any) -> tuple[jax.Array, Losses]:
        values = outputs_of(network, params, sample.obs)
        taken = jnp.take_along_axis(values, sample.actions[:, None], axis=1).squeeze(1)
        td_loss = ((taken - td_target) ** 2).mean()
        own = jax.nn.log_softmax(values / recipe.temperature)
        # summed over the batch, as CleanRL weighs it against the mean of the other
        distill_loss = (jnp.exp(opinion) * (opinion - own)).sum()
        loss = td_loss + weight * distill_loss
        return loss, Losses(loss, distill_loss, td_loss, taken.mean())

    (_, losses), gradients = jax.value_and_grad(both_losses, has_aux=True)(learner.params)
    changes, optimizer = recipe.optimizer.update(gradients, learner.optimizer)
    return Learner(optax.apply_updates(learner.params, changes), learner.target, optimizer), losses


move_target = jax.jit(optax.incremental_update)


@partial(jax.jit, static_argnums=0)  # compiled as one: operation by operation it takes longer
def first_learner(recipe: Recipe, params: Any) -> Learner:
    return Learner(params, params, recipe.optimizer.init(params))


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    prepare(args)
    run = training.start(args)
    envs = vectors.atari(args, run.video_folder)
    teacher = load_teacher(args, lambda state: teacher_network(state, envs))
    network = ImpalaNetwork(int(envs.single_action_space.n))
    recipe = Recipe(args.learning_rate, args.gamma, args.temperature)
    learner = first_learner(recipe, first_params(network, args.seed, blank_obs(envs)))
    buffer = FrameReplay(args.buffer_size, envs.single_observation_space.shape)

    def learn(sample: Transitions, weight: float) -> tuple[Learner, Losses]:
        return update(network, teacher.network, recipe, learner, teacher.params, sample, np.float32(weight))

    blank = buffer.take(np.zeros(args.batch_size, np.int64))
    state, lesson = Trees(**learner._asdict()), Lesson()
    step = run.restore({"policy": state, "lesson": lesson}, buffer)
    if step == 0:  # a warm start has loaded no target
        state.trees["target"] = state.trees["params"]
    learner = Learner(**state.trees)
    compiled("the update", lambda: learn(blank, 1.0))
    obs = run.reset(envs, step)

    def saved() -> dict[str, np.ndarray]:
        return arrays_of({"params": learner.params})

    def enter(stage: int, reason: str) -> None:
        run.tell("stage", {"stage": stage, "env_id": args.env_id, "step": step, "reason": reason})

    # 1 the teacher plays
    if step == 0 and buffer.added < args.teacher_steps:
        enter(0, "the teacher plays")
        lesson.teacher_return = mean_return(*teacher, args, run.say)
        run.log(0, {"charts/teacher/avg_episodic_return": lesson.teacher_return})
    while step == 0 and buffer.added < args.teacher_steps:
        run.say(f"the teacher plays: {buffer.added:,} of {args.teacher_steps:,} steps")
        epsilon = linear_schedule(args.start_e, args.end_e, args.teacher_steps, buffer.added)
        actions = epsilon_greedy(*teacher, epsilon)(obs, run.rng)
        reached = envs.step(actions)
        buffer.add(obs, actions, reached)
        obs = reached.obs
        if run.checkpoint_due(0):  # a stop was requested
            obs = run.checkpoint(0, envs)
    if why := only_offline(args):
        run.tell("warning", {"message": why})
    if step < args.offline_steps:
        enter(1, "offline, from what the teacher played")

    while step < args.total_timesteps:
        # 2 act, unless this is an offline step
        previous, offline = step, step < args.offline_steps
        if offline:
            step += 1
        else:
            if step == args.offline_steps:
                enter(2, "online")
                buffer.forget()
                obs = run.reset(envs, step)
            start_e = args.end_e if run.warm else args.start_e
            epsilon = linear_schedule(start_e, args.end_e, args.exploration_fraction * args.total_timesteps, step)
            explores = run.rng.random(args.num_envs) < epsilon
            if explores.all():
                actions = run.rng.integers(0, envs.single_action_space.n, args.num_envs)
            else:
                actions = np.asarray(values_of(network, learner.params, obs)).argmax(axis=1)
                if explores.any():
                    actions[explores] = run.rng.integers(0, envs.single_action_space.n, explores.sum())
            reached = envs.step(actions)
            buffer.add(obs, actions, reached)
            obs = reached.obs
            step += args.num_envs
            if reached.episodes:
                run.log_episodes(step, reached.episodes)
                run.keep_best(step, saved)
                lesson.student_returns.extend(episode.ret for episode in reached.episodes)

        # 3 learn, and move the target network: each step of each environment counts
        learned = False
        for count in range(previous + 1, step + 1):
            if offline or (count > args.learning_starts and count % args.train_frequency == 0):
                weight = 1.0 if offline else lesson.weight()
                learner, losses = learn(buffer.sample(args.batch_size, run.rng), weight)
                learned = True
            if (offline or count > args.learning_starts) and count % args.target_network_frequency == 0:
                learner = learner._replace(target=move_target(learner.params, learner.target, args.tau))
        if learned and (is_due(100, previous, step) or step == args.offline_steps):
            logged = {tag: float(value) for tag, value in losses._asdict().items()}
            if offline:
                logged = {"loss": logged["loss"], "distill_loss": logged["distill_loss"], "q_loss": logged["td_loss"]}
                run.log(step, {f"charts/offline/{tag}": value for tag, value in logged.items()})
            else:
                run.log(step, {f"losses/{tag}": value for tag, value in logged.items()})
                run.log(step, {"charts/distill_coeff": weight, "charts/epsilon": epsilon})
            run.log_speed(step)
        if offline and (is_due(100_000, previous, step) or step == args.offline_steps):
            run.log(step, {"charts/offline/avg_episodic_return": mean_return(network, learner.params, args, run.say)})

        # 4 checkpoint
        state.trees = learner._asdict()
        if run.checkpoint_due(step):
            obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, saved())
        run.evaluate(step, load_policy(saved(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
