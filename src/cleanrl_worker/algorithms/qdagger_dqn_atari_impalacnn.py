"""QDagger for Atari games: DQN with an IMPALA network that begins with what a trained DQN knows (arXiv:2206.01626).

The teacher plays first and fills the memory; the student then learns offline from it, then online from its own games,
where the teacher counts ever less. Siblings: dqn_atari, qdagger_dqn_atari_jax_impalacnn.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import play, vectors
from cleanrl_worker.envs.episodes import Step, is_due
from cleanrl_worker.learn import dqn_files, graphs
from cleanrl_worker.learn.batches import FrameBatches
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.learn.frame_buffer import FrameReplay
from cleanrl_worker.learn.optim import FlatAdam, flattened
from cleanrl_worker.learn.teachers import load_teacher, only_offline
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
    """CPU threads for the network (0: torch's default, all cores; a convolution is worth them)"""
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
    teacher_model_exp_name: str = "dqn_atari"
    """name of the teacher's policy file there"""
    teacher_eval_episodes: Count = 10
    """games that tell how good the teacher is, and later how good the student"""
    teacher_steps: Count = 500000
    """steps that the teacher plays for the student to learn from"""
    offline_steps: CountFrom0 = 500000
    """updates from what the teacher played, before the student plays itself; they count as steps of total_timesteps"""
    temperature: Annotated[float, Limits(above=0)] = 1.0
    """the higher, the more of the teacher's second choices is learned"""
    cudagraphs: bool = True
    """on a GPU, replay each update and each choice as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class ResidualBlock(nn.Module):
    """Two convolutions whose result is added to what went in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class ConvSequence(nn.Module):
    """A convolution, half the size, two residual blocks."""

    def __init__(self, inputs: int, outputs: int, of_flax: bool) -> None:
        super().__init__()
        self.of_flax = of_flax
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.res_block0, self.res_block1 = ResidualBlock(outputs), ResidualBlock(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, padding = self.conv(x), 1
        if self.of_flax and x.shape[-1] % 2 == 0:  # flax pads only where the windows lead beyond the end
            x, padding = F.pad(x, (0, 1, 0, 1), value=-torch.inf), 0
        return self.res_block1(self.res_block0(F.max_pool2d(x, 3, stride=2, padding=padding)))


class QNetwork(nn.Module):
    """The network of IMPALA (arXiv:1802.01561): four grey frames to the value of each action."""

    def __init__(self, envs: Any, of_flax: bool = False) -> None:
        super().__init__()
        self.network = nn.Sequential(
            ConvSequence(4, 16, of_flax),
            ConvSequence(16, 32, of_flax),
            ConvSequence(32, 32, of_flax),
            nn.Flatten(),
            nn.ReLU(),
            nn.Linear(32 * 11 * 11, 256),
            nn.ReLU(),
            nn.Linear(256, int(envs.single_action_space.n)),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Values of frames given as bytes."""
        # channels last: convolutions on the CPU take two thirds of the time
        return self.network(obs.to(torch.float32, memory_format=torch.channels_last) / 255.0)


class NatureNetwork(nn.Module):
    """The network of dqn_atari, for teachers."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, int(envs.single_action_space.n)),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Values of frames given as bytes."""
        # channels last: convolutions on the CPU take two thirds of the time
        return self.network(obs.to(torch.float32, memory_format=torch.channels_last) / 255.0)


def teacher_network(state: dqn_files.State, envs: Any) -> nn.Module:
    """The network that a file's names are of, with its weights."""
    like_dqn = dqn_files.layers_of(state) is dqn_files.NATURE
    teacher = NatureNetwork(envs) if like_dqn else QNetwork(envs, of_flax=dqn_files.is_flax(state))
    teacher.load_state_dict({name: torch.tensor(value) for name, value in dqn_files.as_torch(state).items()})
    return teacher.requires_grad_(False)


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


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    q_network = QNetwork(spaces)
    q_network.load_state_dict(state)
    return epsilon_greedy(values_of(q_network), float(args.get("end_e", Args.end_e)))


Values = Callable[[np.ndarray], np.ndarray]
"""from observations to what each action is worth"""


def values_of(q_network: nn.Module) -> Values:
    device = next(q_network.parameters()).device

    @torch.no_grad()
    def judge(obs: np.ndarray) -> np.ndarray:
        return q_network(torch.from_numpy(obs).to(device)).cpu().numpy()

    return judge


def epsilon_greedy(judge: Values, epsilon: float) -> Policy:
    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        values = judge(obs)
        if rng is None:
            return values.argmax(axis=1)
        random_actions = rng.integers(0, values.shape[1], len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, values.argmax(axis=1))

    return act


def mean_return(q_network: nn.Module, args: Args, say: Callable[[str], None]) -> float:
    """Of a few whole games with raw rewards."""
    policy = epsilon_greedy(values_of(q_network), args.end_e)
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


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    run = training.start(args)
    device = run.device
    envs = vectors.atari(args, run.video_folder)
    teacher = load_teacher(args, lambda state: teacher_network(state, envs)).to(device)
    q_network = QNetwork(envs).to(device)
    target_network = QNetwork(envs).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = FlatAdam(q_network.parameters(), lr=args.learning_rate)
    target = flattened(target_network.parameters())
    buffer = FrameReplay(args.buffer_size, envs.single_observation_space.shape)
    batches = FrameBatches(buffer, args.batch_size, device)
    courier = Courier(device)
    lesson, weight = Lesson(), torch.ones((), device=device)
    networks = {"policy": q_network, "target": target_network}
    step = run.restore({**networks, "optimizer": optimizer, "lesson": lesson}, buffer)
    obs = run.reset(envs, step)

    seen_last: list[tuple[np.ndarray, np.ndarray, Step]] = []

    def remember() -> None:
        """Put the last step into the memory: not at once, but while a GPU chooses the next actions."""
        if seen_last:
            buffer.add(*seen_last.pop())

    def enter(stage: int, reason: str) -> None:
        run.tell("stage", {"stage": stage, "env_id": args.env_id, "step": step, "reason": reason})

    @courier.both_ways(run)
    @torch.no_grad()
    def advise(seen: torch.Tensor) -> torch.Tensor:
        """The teacher's values."""
        return teacher(seen)

    @courier.both_ways(run)
    @torch.no_grad()
    def choose(seen: torch.Tensor) -> torch.Tensor:
        """The student's greedy actions."""
        return q_network(seen).argmax(dim=1)

    @graphs.captured(run)
    def learn(drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        """The losses, and the values of the actions that were taken."""
        batch = batches.at(drawn)
        with torch.no_grad():
            target_max = target_network(batch.next_obs).max(dim=1).values
            td_target = batch.rewards + args.gamma * (1.0 - batch.terminations) * target_max
            opinion = F.log_softmax(teacher(batch.obs) / args.temperature, dim=1)
        values = q_network(batch.obs)
        old_values = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        q_loss = F.mse_loss(old_values, td_target)
        # summed over the batch, as CleanRL weighs it against the mean of the other
        own = F.log_softmax(values / args.temperature, dim=1)
        distill_loss = F.kl_div(own, opinion, reduction="sum", log_target=True)
        loss = q_loss + weight * distill_loss
        optimizer.step(loss)
        learned = {"loss": loss, "distill_loss": distill_loss, "q_loss": q_loss, "old_values": old_values}
        return {name: found.detach() for name, found in learned.items()}

    # 1 the teacher plays
    if step == 0 and buffer.added < args.teacher_steps:
        enter(0, "the teacher plays")
        lesson.teacher_return = mean_return(teacher, args, run.say)
        run.log(0, {"charts/teacher/avg_episodic_return": lesson.teacher_return})
    while step == 0 and buffer.added < args.teacher_steps:
        run.say(f"the teacher plays: {buffer.added:,} of {args.teacher_steps:,} steps")
        epsilon = linear_schedule(args.start_e, args.end_e, args.teacher_steps, buffer.added)
        actions = epsilon_greedy(lambda seen: advise(seen).fetch(), epsilon)(obs, run.rng)
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
        previous, offline = step, step < args.offline_steps

        # 2 choose, unless this is an offline step
        if not offline:
            if step == args.offline_steps:
                enter(2, "online")
                buffer.forget()
                obs = run.reset(envs, step)
            start_e = args.end_e if run.warm else args.start_e
            epsilon = linear_schedule(start_e, args.end_e, args.exploration_fraction * args.total_timesteps, step)
            explores = run.rng.random(args.num_envs) < epsilon
            random_actions = run.rng.integers(0, envs.single_action_space.n, args.num_envs)
            if not explores.all():
                greedy = choose(obs)
        step += 1 if offline else args.num_envs

        # 3 remember, learn, move the target network: before acting, so that a GPU computes while the environments step
        remember()
        learns = False
        for count in range(previous + 1, step + 1):  # each step of each environment
            if offline or (count > args.learning_starts and count % args.train_frequency == 0 and len(buffer) > 0):
                counts = 1.0 if offline else lesson.weight()
                weight.fill_(counts)
                learned = learn(batches.draw(run.rng))
                learns = True
            if (offline or count > args.learning_starts) and count % args.target_network_frequency == 0:
                target.lerp_(optimizer.flat, args.tau)

        # 4 act
        if not offline:
            actions = random_actions if explores.all() else np.where(explores, random_actions, greedy.fetch())
            reached = envs.step(actions)
            seen_last.append((obs, actions, reached))
            obs = reached.obs
            if reached.episodes:
                run.log_episodes(step, reached.episodes)
                run.keep_best(step, q_network.state_dict)
                lesson.student_returns.extend(episode.ret for episode in reached.episodes)
        if learns and (is_due(100, previous, step) or step == args.offline_steps):
            told = {tag: learned[tag].item() for tag in ("loss", "distill_loss")}
            if offline:
                run.log(step, {f"charts/offline/{tag}": value for tag, value in told.items()})
                run.log(step, {"charts/offline/q_loss": learned["q_loss"].item()})
            else:
                told |= {"td_loss": learned["q_loss"].item(), "q_values": learned["old_values"].mean().item()}
                run.log(step, {f"losses/{tag}": value for tag, value in told.items()})
                run.log(step, {"charts/distill_coeff": counts, "charts/epsilon": epsilon})
            run.log_speed(step)
        if offline and (is_due(100_000, previous, step) or step == args.offline_steps):
            run.log(step, {"charts/offline/avg_episodic_return": mean_return(q_network, args, run.say)})

        # 5 checkpoint
        if run.checkpoint_due(step):
            remember()
            obs = run.checkpoint(step, envs)

    remember()
    if args.save_model:
        run.save_policy(step, q_network.state_dict())
        run.evaluate(step, load_policy(q_network.state_dict(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
