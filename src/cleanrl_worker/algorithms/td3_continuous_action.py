"""TD3 for flat observations and continuous actions (arXiv:1802.09477).

Siblings: ddpg_continuous_action, sac_continuous_action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.actions import require_bounded
from cleanrl_worker.envs.episodes import is_due
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.batches import Batches
from cleanrl_worker.learn.buffers import ReplayBuffer
from cleanrl_worker.learn.optim import FlatAdam, flattened
from cleanrl_worker.nets.critics import TwinLinear, action_slopes, twin_values, twin_vjp
from cleanrl_worker.nets.layers import NumpyNet, Pullback, ReluTower, flat_size, vjp
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Capacity, Count, CountFrom0, RunArgs, Share, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("continuous",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict")


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "Hopper-v5"
    """environment to learn"""
    total_timesteps: Count = 1000000
    """environment steps to train for, over all environments"""
    learning_rate: Amount = 3e-4
    """step size of Adam, for the actor and the critics"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Capacity = 1000000
    """transitions that the replay memory holds"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 0.005
    """share of the online networks that enters the target networks"""
    batch_size: Count = 256
    """transitions per update"""
    policy_noise: Amount = 0.2
    """deviation of the noise on the target actor's actions, as a share of half the action range"""
    exploration_noise: Amount = 0.1
    """deviation of the noise on the actions that are taken, as a share of half the action range"""
    learning_starts: CountFrom0 = 25000
    """steps of random actions before the first update"""
    policy_frequency: Count = 2
    """critic updates between two updates of the actor and the target networks"""
    noise_clip: Amount = 0.5
    """largest noise on the target actor's actions, as a share of half the action range"""
    cudagraphs: bool = True
    """on a GPU, replay each update as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class TwinCritic(nn.Module):
    """Two Q-networks computed side by side: each layer is one batched product instead of two."""

    def __init__(self, envs: Any, hidden: int = 256) -> None:
        super().__init__()
        inputs = flat_size(envs.single_observation_space.shape) + flat_size(envs.single_action_space.shape)
        self.fc1, self.fc2, self.fc3 = TwinLinear(inputs, hidden), TwinLinear(hidden, hidden), TwinLinear(hidden, 1)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values of shape (2, batch)."""
        return twin_values((self.fc1, self.fc2, self.fc3), torch.cat([obs, actions], dim=1))

    def vjp(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        """The same, and what takes their gradient to those of the parameters."""
        return twin_vjp((self.fc1, self.fc2, self.fc3), torch.cat([obs, actions], dim=1))

    def first_slopes(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of the first network alone, of shape (batch), and their slopes by the actions."""
        layers = [(layer.weight[0], layer.bias[0, 0]) for layer in (self.fc1, self.fc2, self.fc3)]
        return action_slopes(layers, obs, actions)

    def state_dicts(self) -> list[dict[str, torch.Tensor]]:
        """Each network as CleanRL's files hold it."""
        return [
            {
                name: (pair[which].T if name.endswith("weight") else pair[which, 0]).contiguous()
                for name, pair in self.state_dict().items()
            }
            for which in range(2)
        ]

    def load_state_dicts(self, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Load networks as CleanRL's files hold them."""
        first = states[0]
        if len(states) != 2 or any(set(one) != set(first) for one in states):
            raise ValueError("two critics of the same layers are needed")
        pairs = {
            name: torch.stack([one[name].T if name.endswith("weight") else one[name][None] for one in states])
            for name in first
        }
        self.load_state_dict(pairs)


class Actor(nn.Module):
    """Observation to action, squashed by tanh into the action space."""

    action_scale: torch.Tensor
    action_bias: torch.Tensor

    def __init__(self, envs: Any, hidden: int = 256) -> None:
        super().__init__()
        inputs, space = flat_size(envs.single_observation_space.shape), envs.single_action_space
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc_mu = nn.Linear(hidden, flat_size(space.shape))
        self.register_buffer("action_scale", torch.tensor((space.high - space.low) / 2.0, dtype=torch.float32))
        self.register_buffer("action_bias", torch.tensor((space.high + space.low) / 2.0, dtype=torch.float32))

    def forward(self, obs: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Noise is in shares of half the action range; what leaves the range is clipped."""
        squashed, _ = self._squashed(obs)
        if noise is not None:
            squashed = squashed.add_(noise).clamp_(-1.0, 1.0)
        return torch.addcmul(self.action_bias, squashed, self.action_scale)

    def vjp(self, obs: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        """Actions, and what takes their gradient to those of the parameters."""
        squashed, pull = self._squashed(obs)
        actions = torch.addcmul(self.action_bias, squashed, self.action_scale)
        return actions, lambda slopes: pull(torch.ops.aten.tanh_backward(slopes * self.action_scale, squashed))

    def _squashed(self, obs: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        means, pull = vjp(ReluTower, (self.fc1, self.fc2, self.fc_mu), obs)
        return means.tanh_(), pull


class ActingPolicy:
    """The actor in numpy, with noise if given a generator."""

    def __init__(self, actor: Actor, space: Any, noise: float) -> None:
        self._net = NumpyNet(actor.fc1, nn.ReLU(), actor.fc2, nn.ReLU(), actor.fc_mu, nn.Tanh())
        self._scale, self._bias = actor.action_scale.cpu().numpy(), actor.action_bias.cpu().numpy()
        self._space, self._deviation = space, np.float32(noise) * self._scale

    def __call__(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        actions = self._net(obs.astype(np.float32)) * self._scale + self._bias
        if rng is not None:
            actions = actions + self._deviation * rng.standard_normal(actions.shape, np.float32)
        return np.minimum(np.maximum(actions, self._space.low), self._space.high)

    def refresh(self) -> None:
        self._net.refresh()


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The saved actor; sampled, with the noise of its exploration."""
    actor = Actor(spaces)
    limits = {name: state[name].reshape(-1)[: actor.action_scale.numel()] for name in ("action_scale", "action_bias")}
    actor.load_state_dict(state | {name: limit.view_as(actor.action_scale) for name, limit in limits.items()})
    return ActingPolicy(actor, spaces.single_action_space, float(args.get("exploration_noise", Args.exploration_noise)))


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    run = training.start(args)
    device = run.device
    envs = vectors.vector(args, run.video_folder)
    space = envs.single_action_space
    require_bounded(space, args.env_id)
    actor = Actor(envs).to(device)
    critic = TwinCritic(envs).to(device)
    target_actor = Actor(envs).to(device)
    target_critic = TwinCritic(envs).to(device)
    target_actor.load_state_dict(actor.state_dict())
    target_critic.load_state_dict(critic.state_dict())
    q_optimizer = FlatAdam(critic.parameters(), lr=args.learning_rate)
    actor_optimizer = FlatAdam(actor.parameters(), lr=args.learning_rate)
    slow_actor, slow_critic = flattened(target_actor.parameters()), flattened(target_critic.parameters())
    buffer = ReplayBuffer(args.buffer_size, envs.single_observation_space.shape, space.shape, np.float32)
    batches = Batches(buffer, args.batch_size, device)
    policy = ActingPolicy(actor, space, args.exploration_noise)
    networks = {"policy": actor, "critic": critic, "target_actor": target_actor, "target_critic": target_critic}
    optimizers = {"q_optimizer": q_optimizer, "actor_optimizer": actor_optimizer}
    step = run.restore({**networks, **optimizers}, buffer)
    policy.refresh()
    obs = run.reset(envs, step)
    actor_values: torch.Tensor | None = None

    def saved() -> tuple[dict[str, Any], ...]:
        return (actor.state_dict(), *critic.state_dicts())

    @graphs.captured(run)
    @torch.no_grad()
    def learn_critics(drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The values of both critics, by how much they miss their target, and the observations they are of."""
        batch = batches.at(drawn)
        noise = torch.empty_like(batch.actions).normal_(std=args.policy_noise).clamp_(-args.noise_clip, args.noise_clip)
        next_values = target_critic(batch.next_obs, target_actor(batch.next_obs, noise)).amin(dim=0)
        # rewards + gamma * (1 - terminations) * next_values
        target = torch.addcmul(batch.rewards, 1.0 - batch.terminations, next_values, value=args.gamma)
        values, pull = critic.vjp(batch.obs, batch.actions)
        errors = values - target
        q_optimizer.apply(pull(errors * (2.0 / args.batch_size)))  # downhill: the mean of errors**2
        return values, errors, batch.obs

    @graphs.captured(run)
    @torch.no_grad()
    def learn_actor(obs: torch.Tensor) -> torch.Tensor:
        """The values of the actor's actions, which it learns to raise; the target networks move as well."""
        actions, pull = actor.vjp(obs)
        values, slopes = critic.first_slopes(obs, actions)
        actor_optimizer.apply(pull(slopes * (-1.0 / args.batch_size)))  # downhill: the mean of -values
        torch._foreach_lerp_([slow_actor, slow_critic], [actor_optimizer.flat, q_optimizer.flat], args.tau)
        return values

    while step < args.total_timesteps:
        # 1 act
        if step < args.learning_starts and not run.warm:
            actions = run.rng.uniform(space.low, space.high, (args.num_envs, *space.shape)).astype(np.float32)
        else:
            actions = policy(obs, run.rng)
        reached = envs.step(actions)
        buffer.add(obs, actions, reached.rewards, reached.final_obs, reached.terminations)
        obs = reached.obs
        previous, step = step, step + args.num_envs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, saved)
        if step <= args.learning_starts:
            if run.checkpoint_due(step):
                obs = run.checkpoint(step, envs)
            continue

        # 2 learn: one update for each step of each environment
        for count in range(max(previous, args.learning_starts) + 1, step + 1):
            values, errors, b_obs = learn_critics(batches.draw(run.rng))
            # the actor, and the target networks
            if count % args.policy_frequency == 0:
                actor_values = learn_actor(b_obs)
                policy.refresh()

        # 3 log, checkpoint
        if is_due(100, previous, step):
            q_losses = errors.square().mean(dim=1)
            losses = {"losses/qf_loss": q_losses.mean()}
            for index, (value, loss) in enumerate(zip(values.mean(dim=1), q_losses, strict=True), start=1):
                losses |= {f"losses/qf{index}_values": value, f"losses/qf{index}_loss": loss}
            if actor_values is not None:
                losses["losses/actor_loss"] = -actor_values.mean()
            run.log(step, {tag: float(value) for tag, value in losses.items()})
            run.log_speed(step)
        if run.checkpoint_due(step):
            obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, saved())
        run.evaluate(step, load_policy(actor.state_dict(), envs, vars(args)))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
