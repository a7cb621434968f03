"""SAC for discrete actions, on Atari games (arXiv:1910.07207). Siblings: sac_continuous_action, dqn_atari."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.episodes import Step, is_due
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.batches import FrameBatches
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.learn.frame_buffer import FrameReplay
from cleanrl_worker.learn.optim import FlatAdam, flattened
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Count, CountFrom0, RunArgs, Share, Stacks, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("discrete",)
OBSERVATION_SPACES = ("image",)
FAMILIES = ("atari", "image-games")
DEFAULT_BACKEND = "envpool"


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "BeamRiderNoFrameskip-v4"
    """game to learn: BeamRider-v5, ALE/BeamRider-v5 or BeamRiderNoFrameskip-v4 are the same here"""
    total_timesteps: Count = 5000000
    """environment steps to train for, over all environments (a step is four frames)"""
    checkpoint_every: CountFrom0 = 150000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the networks (0: torch's default, all cores; a convolution is worth them)"""
    buffer_size: Stacks = 1000000
    """transitions that the replay memory holds (a million takes 7.6 GB)"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 1.0
    """share of the critics that enters the target critics (1: a plain copy)"""
    batch_size: Count = 64
    """transitions per update"""
    learning_starts: CountFrom0 = 20000
    """steps of random actions before the first update"""
    policy_lr: Amount = 3e-4
    """step size of Adam for the actor"""
    q_lr: Amount = 3e-4
    """step size of Adam for the critics and the entropy weight"""
    update_frequency: Count = 4
    """environment steps between two updates, over all environments"""
    target_network_frequency: Count = 8000
    """steps between two updates of the target critics"""
    alpha: Amount = 0.2
    """weight of the entropy when it is not tuned"""
    autotune: bool = True
    """tune the weight of the entropy"""
    target_entropy_scale: Share = 0.89
    """share of the greatest entropy that tuning aims at"""
    cudagraphs: bool = True
    """on a GPU, replay each update and each choice as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class PixelNetwork(nn.Module):
    """Four grey frames to a number per action; the actor's are logits, a critic's are values."""

    def __init__(self, envs: Any, head: str) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _kaiming(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            _kaiming(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            _kaiming(nn.Conv2d(64, 64, 3, stride=1)),
            nn.Flatten(),
        )
        self.fc1 = _kaiming(nn.Linear(64 * 7 * 7, 512))
        self.head = head
        self.add_module(head, _kaiming(nn.Linear(512, int(envs.single_action_space.n))))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Of frames given as bytes."""
        # channels last: convolutions on the CPU take two thirds of the time
        hidden = F.relu(self.conv(obs.to(torch.float32, memory_format=torch.channels_last) / 255.0))
        return self.get_submodule(self.head)(F.relu(self.fc1(hidden)))


class Actor(PixelNetwork):
    """Frames to the logits of the actions."""

    def __init__(self, envs: Any) -> None:
        super().__init__(envs, "fc_logits")


class TwinCritic(nn.Module):
    """Two Q-networks; the smaller of their values is believed."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.qf1, self.qf2 = PixelNetwork(envs, "fc_q"), PixelNetwork(envs, "fc_q")

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Values of shape (2, batch, actions)."""
        return torch.stack([self.qf1(obs), self.qf2(obs)])


def _kaiming(layer: nn.Module) -> nn.Module:
    nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The saved actor: greedily its likeliest action, else a sample."""
    actor = Actor(spaces)
    actor.load_state_dict(state)

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        with torch.no_grad():
            scores = actor(torch.from_numpy(obs)).numpy()
        return (scores if rng is None else scores + rng.gumbel(size=scores.shape)).argmax(axis=1)

    return act


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    run = training.start(args)
    device = run.device
    envs = vectors.atari(args, run.video_folder)
    count = int(envs.single_action_space.n)
    actor = Actor(envs).to(device)
    critic = TwinCritic(envs).to(device)
    target_critic = TwinCritic(envs).to(device)
    target_critic.load_state_dict(critic.state_dict())
    # eps: Adam's own 1e-8 is too small for the tiny gradients of these losses
    q_optimizer = FlatAdam(critic.parameters(), lr=args.q_lr, eps=1e-4)
    actor_optimizer = FlatAdam(actor.parameters(), lr=args.policy_lr, eps=1e-4)
    target = flattened(target_critic.parameters())
    entropy = nn.ParameterDict({"log_alpha": torch.zeros(1, device=device)})
    log_alpha = entropy["log_alpha"]
    alpha_optimizer = FlatAdam([log_alpha], lr=args.q_lr, eps=1e-4)
    alpha = torch.full((1,), args.alpha, device=device)
    target_entropy = args.target_entropy_scale * log(count)
    buffer = FrameReplay(args.buffer_size, envs.single_observation_space.shape)
    batches = FrameBatches(buffer, args.batch_size, device)
    courier = Courier(device)
    networks = {"policy": actor, "critic": critic, "target_critic": target_critic, "entropy": entropy}
    optimizers = {"q_optimizer": q_optimizer, "actor_optimizer": actor_optimizer, "alpha_optimizer": alpha_optimizer}
    step = run.restore({**networks, **optimizers}, buffer)
    if args.autotune:
        alpha.copy_(log_alpha.detach().exp())
    obs = run.reset(envs, step)
    seen_last: list[tuple[np.ndarray, np.ndarray, Step]] = []

    def remember() -> None:
        """Put the last step into the memory: not at once, but while a GPU chooses the next actions."""
        if seen_last:
            buffer.add(*seen_last.pop())

    @courier.both_ways(run)
    @torch.no_grad()
    def judge(seen: torch.Tensor) -> torch.Tensor:
        """The logits of the actions."""
        return actor(seen)

    @graphs.captured(run)
    def learn(drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        """The losses, and the values that both critics gave to the actions that were taken."""
        # the critics: expectations over actions are sums, nothing need be sampled
        batch = batches.at(drawn)
        with torch.no_grad():
            next_logprobs = F.log_softmax(actor(batch.next_obs), dim=1)
            soft = target_critic(batch.next_obs).amin(dim=0) - alpha * next_logprobs
            next_values = (next_logprobs.exp() * soft).sum(dim=1)
            td_target = batch.rewards + args.gamma * (1.0 - batch.terminations) * next_values
        values = critic(batch.obs).gather(2, batch.actions.expand(2, -1).unsqueeze(2)).squeeze(2)
        q_losses = ((values - td_target) ** 2).mean(dim=1)
        q_optimizer.step(q_losses.sum())

        # the actor, and the weight of its entropy
        with torch.no_grad():
            believed = critic(batch.obs).amin(dim=0)
        logprobs = F.log_softmax(actor(batch.obs), dim=1)
        actor_loss = (logprobs.exp() * (alpha * logprobs - believed)).sum(dim=1).mean()
        actor_optimizer.step(actor_loss)
        learned = {"values": values, "q_losses": q_losses, "actor_loss": actor_loss}
        if args.autotune:
            surplus = -(logprobs.exp() * logprobs).sum(dim=1).detach() - target_entropy
            learned["alpha_loss"] = alpha_loss = (log_alpha.exp() * surplus).mean()
            alpha_optimizer.step(alpha_loss)
            alpha.copy_(log_alpha.detach().exp())
        return {name: found.detach() for name, found in learned.items()}

    while step < args.total_timesteps:
        previous, step = step, step + args.num_envs

        # 1 choose
        explores = previous < args.learning_starts and not run.warm
        if explores:
            actions = run.rng.integers(0, count, args.num_envs)
        else:
            judged = judge(obs)

        # 2 remember, learn, move the target critics: before acting, so that a GPU computes while the environments step
        remember()
        learns = False
        for count in range(max(previous, args.learning_starts) + 1, step + 1):  # each step of each environment
            if count % args.update_frequency == 0 and len(buffer) > 0:
                learned = learn(batches.draw(run.rng))
                learns = True
            if count % args.target_network_frequency == 0:
                target.lerp_(q_optimizer.flat, args.tau)

        # 3 act
        if not explores:
            logits = judged.fetch()
            actions = (logits + run.rng.gumbel(size=logits.shape)).argmax(axis=1)  # Gumbel-max: a sample of the softmax
        reached = envs.step(actions)
        seen_last.append((obs, actions, reached))
        obs = reached.obs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, actor.state_dict)
        if learns and is_due(100, previous, step):
            values, q_losses = learned["values"], learned["q_losses"]
            losses = {"losses/qf_loss": q_losses.mean().item(), "losses/actor_loss": learned["actor_loss"].item()}
            for index in range(2):
                losses[f"losses/qf{index + 1}_values"] = values[index].mean().item()
                losses[f"losses/qf{index + 1}_loss"] = q_losses[index].item()
            losses["losses/alpha"] = alpha.item() if args.autotune else args.alpha
            tuned = {"losses/alpha_loss": learned["alpha_loss"].item()} if args.autotune else {}
            run.log(step, losses | tuned)
            run.log_speed(step)

        # 4 checkpoint
        if run.checkpoint_due(step):
            remember()
            obs = run.checkpoint(step, envs)

    remember()
    if args.save_model:
        run.save_policy(step, actor.state_dict())
        run.evaluate(step, load_policy(actor.state_dict(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
