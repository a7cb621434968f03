"""Soft actor-critic for flat observations and continuous actions (arXiv:1812.05905)."""

from collections.abc import Mapping
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
from cleanrl_worker.nets.critics import TwinLinear, least_slopes, twin_values, twin_vjp
from cleanrl_worker.nets.layers import NumpyNet, Pullback, ReluTower, flat_size, through_relu, vjp
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Capacity, Count, CountFrom0, RunArgs, Share, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("continuous",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict")
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LOG_STD_MIDDLE, LOG_STD_REACH = 0.5 * (LOG_STD_MAX + LOG_STD_MIN), 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
LOG_TWO_PI = float(np.log(2 * np.pi))


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "Hopper-v5"
    """environment to learn"""
    total_timesteps: Count = 1000000
    """environment steps to train for, over all environments"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Capacity = 1000000
    """transitions that the replay memory holds"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 0.005
    """share of the online critics that enters the target critics"""
    batch_size: Count = 256
    """transitions per update"""
    learning_starts: CountFrom0 = 5000
    """steps of random actions before the first update"""
    policy_lr: Amount = 3e-4
    """step size of the actor's Adam"""
    q_lr: Amount = 1e-3
    """step size of the critics' Adam"""
    policy_frequency: Count = 2
    """critic updates between two rounds of actor updates (a round makes as many updates)"""
    target_network_frequency: Count = 1
    """critic updates between two updates of the target critics"""
    alpha: Amount = 0.2
    """weight of the entropy when it is not tuned"""
    autotune: bool = True
    """tune the weight of the entropy"""
    cudagraphs: bool = True
    """on a GPU, replay each update as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class TwinCritic(nn.Module):
    """Two Q-networks computed side by side: each layer is one batched product instead of two."""

    def __init__(self, envs: Any, hidden: int = 256) -> None:
        super().__init__()
        inputs = flat_size(envs.single_observation_space.shape) + flat_size(envs.single_action_space.shape)
        self._layers = [TwinLinear(a, b) for a, b in ((inputs, hidden), (hidden, hidden), (hidden, 1))]
        self.layers = nn.ModuleList(self._layers)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values of shape (2, batch)."""
        return twin_values(self._layers, torch.cat([obs, actions], dim=1))

    def vjp(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        """The same, and what takes their gradient to those of the parameters."""
        return twin_vjp(self._layers, torch.cat([obs, actions], dim=1))

    def least_slopes(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The smaller of the two values, of shape (batch), and its slope by the action."""
        return least_slopes(self._layers, obs, actions)


class Actor(nn.Module):
    """A Gaussian squashed by tanh into the action space."""

    action_scale: torch.Tensor
    action_bias: torch.Tensor

    def __init__(self, envs: Any, hidden: int = 256) -> None:
        super().__init__()
        inputs, space = flat_size(envs.single_observation_space.shape), envs.single_action_space
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc_mean = nn.Linear(hidden, flat_size(space.shape))
        self.fc_logstd = nn.Linear(hidden, flat_size(space.shape))
        self.register_buffer("action_scale", torch.tensor((space.high - space.low) / 2.0, dtype=torch.float32))
        self.register_buffer("action_bias", torch.tensor((space.high + space.low) / 2.0, dtype=torch.float32))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A sampled action and its log-probability."""
        return self.vjp(obs)[0]

    @torch.no_grad()
    def vjp(self, obs: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], Pullback]:
        """The same, and what takes the gradients of both to those of the parameters (the reparametrisation trick)."""
        hidden, to_trunk = vjp(ReluTower, (self.fc1, self.fc2), obs)
        hidden.relu_()
        mean, bend = self.fc_mean(hidden), self.fc_logstd(hidden).tanh_()
        log_std = LOG_STD_MIDDLE + LOG_STD_REACH * bend
        noise = torch.randn_like(mean)
        spread = log_std.exp() * noise
        squashed = mean.add_(spread).tanh_()
        slope = 1.0 - squashed.square()
        stretch = self.action_scale * slope + 1e-6  # appendix C: change of variables
        surprise = torch.addcmul(log_std, noise, noise, value=0.5).add_(stretch.log())
        logprobs = -0.5 * LOG_TWO_PI * noise.shape[1] - surprise.sum(dim=1)
        actions = torch.addcmul(self.action_bias, squashed, self.action_scale)

        @torch.no_grad()
        def pull(d_actions: torch.Tensor, d_logprobs: torch.Tensor) -> list[torch.Tensor]:
            # a log-probability falls with log_std and with log(stretch), whose slope is -2 scale squashed / stretch
            d_squashed = self.action_scale * torch.addcdiv(d_actions, d_logprobs * squashed, stretch, value=2.0)
            d_mean = d_squashed * slope
            d_bend = torch.ops.aten.tanh_backward(LOG_STD_REACH * (d_mean * spread - d_logprobs), bend)
            d_hidden = (d_mean @ self.fc_mean.weight).addmm_(d_bend, self.fc_logstd.weight)
            heads = [d_mean.t() @ hidden, d_mean.sum(dim=0), d_bend.t() @ hidden, d_bend.sum(dim=0)]
            return [*to_trunk(through_relu(d_hidden, hidden)), *heads]

        return (actions, logprobs), pull


class ActingPolicy:
    """The actor in numpy: mean and log-deviation side by side."""

    def __init__(self, actor: Actor) -> None:
        self._trunk = NumpyNet(actor.fc1, nn.ReLU(), actor.fc2, nn.ReLU())
        self._mean, self._log_std = NumpyNet(actor.fc_mean), NumpyNet(actor.fc_logstd)

    def __call__(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = self._trunk(obs)
        squashed = np.tanh(self._log_std(hidden))
        return self._mean(hidden), LOG_STD_MIDDLE + LOG_STD_REACH * squashed

    def refresh(self) -> None:
        for net in (self._trunk, self._mean, self._log_std):
            net.refresh()


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The saved actor: greedily its mean, else a sample, squashed into the action space."""
    actor = Actor(spaces)
    actor.load_state_dict(state)
    policy = ActingPolicy(actor)
    scale, bias = actor.action_scale.numpy(), actor.action_bias.numpy()

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        mean, log_std = policy(obs.astype(np.float32))
        if rng is not None:
            mean = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        return np.tanh(mean) * scale + bias

    return act


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
    target_critic = TwinCritic(envs).to(device)
    target_critic.load_state_dict(critic.state_dict())
    q_optimizer = FlatAdam(critic.parameters(), lr=args.q_lr)
    actor_optimizer = FlatAdam(actor.parameters(), lr=args.policy_lr)
    slow_critic = flattened(target_critic.parameters())
    entropy = nn.ParameterDict({"log_alpha": torch.zeros(1, device=device)})
    log_alpha = entropy["log_alpha"]
    alpha_optimizer = FlatAdam([log_alpha], lr=args.q_lr)
    alpha = torch.full((1,), args.alpha, device=device)
    target_entropy = -float(flat_size(space.shape))
    scale, bias = actor.action_scale.cpu().numpy(), actor.action_bias.cpu().numpy()
    buffer = ReplayBuffer(args.buffer_size, envs.single_observation_space.shape, space.shape, np.float32)
    batches = Batches(buffer, args.batch_size, device)
    policy = ActingPolicy(actor)
    networks = {"policy": actor, "critic": critic, "target_critic": target_critic, "entropy": entropy}
    optimizers = {"q_optimizer": q_optimizer, "actor_optimizer": actor_optimizer, "alpha_optimizer": alpha_optimizer}
    step = run.restore({**networks, **optimizers}, buffer)
    if args.autotune:
        alpha.copy_(log_alpha.detach().exp())
    policy.refresh()
    obs = run.reset(envs, step)
    losses: dict[str, Any] = {}

    @graphs.captured(run)
    @torch.no_grad()
    def learn_critics(drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The values of both critics, by how much they miss their target, and the observations they are of."""
        batch = batches.at(drawn)
        next_actions, next_logprobs = actor(batch.next_obs)
        next_values = target_critic(batch.next_obs, next_actions).amin(dim=0) - alpha * next_logprobs
        # rewards + gamma * (1 - terminations) * next_values
        target = torch.addcmul(batch.rewards, 1.0 - batch.terminations, next_values, value=args.gamma)
        values, pull = critic.vjp(batch.obs, batch.actions)
        errors = values - target
        q_optimizer.apply(pull(errors * (2.0 / args.batch_size)))  # downhill: the mean of errors**2
        return values, errors, batch.obs

    @graphs.captured(run)
    @torch.no_grad()
    def learn_actor(obs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Of the actor, and of the weight of its entropy: as many updates as it has missed."""
        for _ in range(args.policy_frequency):
            (new_actions, logprobs), pull = actor.vjp(obs)
            values, slopes = critic.least_slopes(obs, new_actions)
            learned = {"losses/actor_loss": (alpha * logprobs - values).mean()}
            actor_optimizer.apply(pull(slopes * (-1.0 / args.batch_size), alpha / args.batch_size))
            if args.autotune:
                # the actions are those of the actor's own loss: sampling anew would cost a tenth of the step
                alpha_loss = alpha * (-target_entropy - logprobs.mean())
                alpha_optimizer.apply([alpha_loss])  # alpha = exp(log_alpha): the loss is its own gradient
                torch.exp(log_alpha, out=alpha)
                learned["losses/alpha_loss"] = alpha_loss
        return learned

    while step < args.total_timesteps:
        # 1 act
        if step < args.learning_starts and not run.warm:
            actions = run.rng.uniform(space.low, space.high, (args.num_envs, *space.shape)).astype(np.float32)
        else:
            mean, log_std = policy(obs.astype(np.float32))
            noise = run.rng.standard_normal(mean.shape, np.float32)
            actions = np.tanh(mean + np.exp(log_std) * noise) * scale + bias
        reached = envs.step(actions)
        buffer.add(obs, actions, reached.rewards, reached.final_obs, reached.terminations)
        obs = reached.obs
        previous, step = step, step + args.num_envs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, actor.state_dict)
        if step <= args.learning_starts:
            if run.checkpoint_due(step):
                obs = run.checkpoint(step, envs)
            continue

        # 2 learn: one update for each step of each environment
        for count in range(max(previous, args.learning_starts) + 1, step + 1):
            values, errors, b_obs = learn_critics(batches.draw(run.rng))
            # the actor, and the weight of its entropy
            if count % args.policy_frequency == 0:
                losses |= learn_actor(b_obs)
                policy.refresh()
            # the target critics
            if count % args.target_network_frequency == 0:
                slow_critic.lerp_(q_optimizer.flat, args.tau)

        # 3 log, checkpoint
        if is_due(100, previous, step):
            q_losses = errors.square().mean(dim=1)
            for index, (value, loss) in enumerate(zip(values.mean(dim=1), q_losses, strict=True), start=1):
                losses |= {f"losses/qf{index}_values": value, f"losses/qf{index}_loss": loss}
            losses |= {"losses/qf_loss": q_losses.mean(), "losses/alpha": alpha if args.autotune else args.alpha}
            run.log(step, {tag: float(value) for tag, value in losses.items()})
            run.log_speed(step)
        if run.checkpoint_due(step):
            obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, actor.state_dict())
        run.evaluate(step, load_policy(actor.state_dict(), envs, vars(args)))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
