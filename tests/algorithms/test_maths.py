"""Formulas that every algorithm file repeats, pinned over all copies."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

GAE_FILES = (
    *("ppo", "ppo_continuous_action", "rpo_continuous_action"),
    *("ppo_atari", "ppo_atari_envpool", "ppo_atari_lstm", "ppo_atari_multigpu"),
    *("ppo_jax", "ppo_atari_envpool_xla_jax", "ppo_atari_envpool_xla_jax_scan"),
)
CONTINUOUS_FILES = ("ppo_continuous_action", "rpo_continuous_action")
SCHEDULE_FILES = ("dqn", "dqn_jax", "c51", "c51_jax", "pqn")
SCHEDULE_FILES += ("dqn_atari", "c51_atari", "rainbow_atari", "qdagger_dqn_atari_impalacnn")
SCHEDULE_FILES += ("dqn_atari_jax", "c51_atari_jax", "qdagger_dqn_atari_jax_impalacnn")
PROJECTION_FILES = ("c51", "c51_jax", "c51_atari", "c51_atari_jax", "rainbow_atari")
RETURN_FILES = ("pqn", "pqn_atari_envpool", "pqn_atari_envpool_lstm")
SCHEDULE_FILES += RETURN_FILES[1:]
GAE_FILES += ("ppo_rnd_envpool", "ppo_procgen", "ppg_procgen", "ppo_pettingzoo_ma_atari")


def module(name):
    return importlib.import_module(f"cleanrl_worker.algorithms.{name}")


def plain_gae(rewards, values, next_values, ends, gamma, lam):
    """The sum of equation 16, written out: delta_t + (gamma lambda) delta_{t+1} + … up to the episode's end."""
    deltas = rewards + gamma * next_values - values
    result = np.zeros_like(rewards)
    for env in range(rewards.shape[1]):
        for t in range(len(rewards)):
            weight = 1.0
            for later in range(t, len(rewards)):
                result[t, env] += weight * deltas[later, env]
                weight *= gamma * lam
                if ends[later, env]:
                    break
    return result


@pytest.mark.parametrize("name", GAE_FILES)
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_gae_is_the_sum_of_its_paper(name, lam):
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 12, 4))
    ends = (rng.random((12, 4)) < 0.25).astype(float)
    expected = plain_gae(rewards, values, next_values, ends, 0.9, lam)
    found = module(name).gae(rewards, values, next_values, ends, 0.9, lam)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if "_jax" in name else 1e-7, atol=1e-6)


@pytest.mark.parametrize("name", SCHEDULE_FILES)
@pytest.mark.parametrize(("step", "value"), [(0, 1.0), (50, 0.525), (100, 0.05), (1000, 0.05)])
def test_the_exploration_schedule_falls_linearly_and_stays(name, step, value):
    assert module(name).linear_schedule(1.0, 0.05, 100, step) == pytest.approx(value)


def plain_projection(pmf, reward, alive, atoms, gamma):
    """Algorithm 1 of the paper, atom by atom."""
    low, high, last = atoms[0], atoms[-1], len(atoms) - 1
    projected = np.zeros(len(atoms))
    for atom, probability in zip(atoms, pmf, strict=True):
        place = (min(max(reward + gamma * alive * atom, low), high) - low) / ((high - low) / last)
        below, above = int(np.floor(place)), int(np.ceil(place))
        if below == above:
            projected[below] += probability
        else:
            projected[below] += probability * (above - place)
            projected[above] += probability * (place - below)
    return projected


@pytest.mark.parametrize("name", PROJECTION_FILES)
@pytest.mark.parametrize(("low", "high"), [(-10.0, 10.0), (-1.3, 0.7)])
def test_the_projection_is_that_of_its_paper_and_loses_no_probability(name, low, high):
    generator = torch.Generator().manual_seed(0)
    atoms = torch.linspace(low, high, 21)
    pmfs = torch.rand((64, 21), generator=generator).softmax(dim=1)
    rewards = torch.randn(64, generator=generator) * (high - low)  # some lead beyond the first or last atom
    rewards[:3] = torch.tensor([0.0, low, high])
    alive = (torch.rand(64, generator=generator) < 0.7).float()
    given = (pmfs, rewards, alive, atoms)
    given = [part.numpy() for part in given] if name.endswith("_jax") else given
    found = np.asarray(module(name).project(*given, 0.9))
    rows = zip(*(part.double().numpy() for part in (pmfs, rewards, alive)), strict=True)
    expected = [plain_projection(*row, atoms.double().numpy(), 0.9) for row in rows]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("name", ["c51", "c51_atari", "rainbow_atari"])
def test_the_projection_is_the_same_as_a_product(name):
    generator = torch.Generator().manual_seed(0)
    atoms, pmfs = torch.linspace(-1.3, 0.7, 21), torch.rand((64, 21), generator=generator).softmax(dim=1)
    shifts = (torch.randn(64, generator=generator), (torch.rand(64, generator=generator) < 0.7).float())
    found = module(name).project(pmfs, *shifts, atoms, 0.9, as_product=True)
    torch.testing.assert_close(found, module(name).project(pmfs, *shifts, atoms, 0.9), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", RETURN_FILES)
@pytest.mark.parametrize("lam", [0.0, 0.65, 1.0])
def test_the_returns_of_q_lambda_are_the_mean_over_their_n_step_returns(name, lam):
    rng = np.random.default_rng(0)
    rewards, next_values = rng.normal(size=(2, 12, 4))
    ends = (rng.random((12, 4)) < 0.25).astype(float)
    expected = np.zeros_like(rewards)
    for env in range(4):
        for t in range(12):
            last = next((at for at in range(t, 12) if ends[at, env]), 11)
            for end in range(t, last + 1):  # the n-step returns, of which the longest gets all weight that is left
                steps = range(t, end + 1)
                whole = sum(0.9 ** (at - t) * rewards[at, env] for at in steps)
                whole += 0.9 ** len(steps) * next_values[end, env]
                expected[t, env] += lam ** (end - t) * (1.0 if end == last else 1 - lam) * whole
    found = module(name).lambda_returns(rewards, next_values, ends, 0.9, lam)
    np.testing.assert_allclose(found, expected)


def test_the_critics_of_td3_are_cleanrl_networks_when_they_are_saved():
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)), single_action_space=SimpleNamespace(shape=(2,))
    )
    critic, plain = (
        module("td3_continuous_action").TwinCritic(spaces),
        module("ddpg_continuous_action").QNetwork(spaces),
    )
    obs, actions = torch.randn(7, 5), torch.randn(7, 2)
    with torch.no_grad():
        both = critic(obs, actions)
        torch.testing.assert_close(critic.first_slopes(obs, actions)[0], both[0])
        for values, state in zip(both, critic.state_dicts(), strict=True):
            plain.load_state_dict(state)
            torch.testing.assert_close(plain(obs, actions), values)


def plain_loss(logprobs, entropy, values, minibatch, args):
    """PPO's loss as its paper writes it, for autograd to differentiate."""
    old_logprobs, advantages, returns, old_values = minibatch
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
    value_loss = (values - returns) ** 2
    if args.clip_vloss:
        near = old_values + (values - old_values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, (near - returns) ** 2)
    return policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * 0.5 * value_loss.mean()


def minibatch_of(logprobs, values):
    """Samples of which some are clipped on either side, in policy and in value."""
    count = len(values)
    return (
        (logprobs + 0.4 * torch.randn(count)).detach(),
        torch.randn(count),
        torch.randn(count),
        (values + 0.4 * torch.randn(count)).detach(),
    )


@pytest.mark.parametrize("clip_vloss", [True, False])
def test_the_gradients_of_ppo_are_those_of_its_loss(clip_vloss):
    ppo = module("ppo")
    torch.manual_seed(1)
    args = ppo.Args(clip_vloss=clip_vloss, ent_coef=0.1)
    logits, values = torch.randn(256, 3, requires_grad=True), torch.randn(256, requires_grad=True)
    actions = torch.randint(0, 3, (256,))
    distribution = torch.distributions.Categorical(logits=logits)
    logprobs = distribution.log_prob(actions)
    minibatch = minibatch_of(logprobs, values)
    loss = plain_loss(logprobs, distribution.entropy(), values, minibatch, args)
    expected = torch.autograd.grad(loss, (logits, values))
    losses, gradients = ppo.clipped_losses(logits, values, actions, *minibatch, args)
    torch.testing.assert_close(gradients, expected)
    total = losses.policy.mean() - args.ent_coef * losses.entropy.mean() + args.vf_coef * losses.value.mean()
    torch.testing.assert_close(total, loss.detach())
    assert 0.1 < ((losses.ratio - 1).abs() > args.clip_coef).float().mean() < 0.9


@pytest.mark.parametrize("name", CONTINUOUS_FILES)
@pytest.mark.parametrize("clip_vloss", [True, False])
def test_the_gradients_of_continuous_ppo_are_those_of_its_loss(name, clip_vloss):
    ppo = module(name)
    torch.manual_seed(1)
    args = ppo.Args(clip_vloss=clip_vloss, ent_coef=0.1)
    means, values = torch.randn(256, 3, requires_grad=True), torch.randn(256, requires_grad=True)
    logstd = (0.3 * torch.randn(1, 3)).requires_grad_()
    actions = means.detach() + torch.randn(256, 3)
    distribution = torch.distributions.Normal(means, logstd.exp().expand_as(means))
    logprobs = distribution.log_prob(actions).sum(dim=1)
    minibatch = minibatch_of(logprobs, values)
    loss = plain_loss(logprobs, distribution.entropy().sum(dim=1), values, minibatch, args)
    expected = torch.autograd.grad(loss, (means, values, logstd))
    losses, gradients = ppo.clipped_losses(means, values, logstd, actions, *minibatch, args)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    total = losses.policy.mean() - args.ent_coef * losses.entropy + args.vf_coef * losses.value.mean()
    torch.testing.assert_close(total, loss.detach())
    assert 0.1 < ((losses.ratio - 1).abs() > args.clip_coef).float().mean() < 0.9


def of_jax(name, args, params, rows, continuous):
    """Loss and gradients of a JAX file whose agent's outputs are parameters themselves."""
    import jax

    ppo, agent = module(name), SimpleNamespace(apply=outputs_are_parameters, continuous=continuous)
    recipe = ppo.Recipe(*(getattr(args, field) for field in ppo.Recipe._fields))
    loss = ppo.clipped_loss if name == "ppo_jax" else ppo.ppo_loss
    given = {key: tensor.detach().numpy() for key, tensor in params.items()}
    plain = ppo.Rows(None, *(part.numpy() for part in rows))

    @jax.jit
    def slopes(params):
        return jax.value_and_grad(lambda params: loss(params, agent, recipe, plain)[0])(params)

    return slopes(given)


def outputs_are_parameters(variables, _obs):
    return variables["params"]["outputs"], variables["params"]["values"]


@pytest.mark.parametrize("name", ["ppo_jax", "ppo_atari_envpool_xla_jax", "ppo_atari_envpool_xla_jax_scan"])
@pytest.mark.parametrize("clip_vloss", [True, False])
def test_the_loss_of_ppo_in_jax_is_that_of_torch_on_the_rows_that_are_real(name, clip_vloss):
    torch.manual_seed(1)
    args = module(name).Args(clip_vloss=clip_vloss, ent_coef=0.1)
    logits, values = torch.randn(256, 3, requires_grad=True), torch.randn(256, requires_grad=True)
    actions, real = torch.randint(0, 3, (256,)), torch.rand(256) < 0.8
    distribution = torch.distributions.Categorical(logits=logits)
    logprobs = distribution.log_prob(actions)
    old_logprobs, advantages, returns, old_values = minibatch_of(logprobs, values)
    normal = (advantages - advantages[real].mean()) / (advantages[real].std() + 1e-8)
    minibatch = [part[real] for part in (old_logprobs, normal, returns, old_values)]
    loss = plain_loss(logprobs[real], distribution.entropy()[real], values[real], minibatch, args)
    expected = torch.autograd.grad(loss, (logits, values))
    params = {"outputs": logits, "values": values}
    rows = (actions, old_logprobs, advantages, returns, old_values, real)
    found, gradients = of_jax(name, args, params, rows, continuous=False)
    np.testing.assert_allclose(found, loss.item(), rtol=1e-4)
    for key, slope in zip(params, expected, strict=True):
        np.testing.assert_allclose(gradients[key], slope, rtol=1e-4, atol=1e-6, err_msg=key)


def test_the_loss_of_continuous_ppo_in_jax_is_that_of_torch():
    torch.manual_seed(1)
    args = module("ppo_jax").Args(ent_coef=0.1, norm_adv=False)
    means, values = torch.randn(256, 3, requires_grad=True), torch.randn(256, requires_grad=True)
    logstd = (0.3 * torch.randn(3)).requires_grad_()
    actions = means.detach() + torch.randn(256, 3)
    distribution = torch.distributions.Normal(means, logstd.exp().expand_as(means))
    logprobs = distribution.log_prob(actions).sum(dim=1)
    minibatch = minibatch_of(logprobs, values)
    loss = plain_loss(logprobs, distribution.entropy().sum(dim=1), values, minibatch, args)
    params = {"outputs": means, "values": values, "actor_logstd": logstd}
    expected = torch.autograd.grad(loss, tuple(params.values()))
    rows = (actions, *minibatch, torch.ones(256, dtype=torch.bool))
    found, gradients = of_jax("ppo_jax", args, params, rows, continuous=True)
    np.testing.assert_allclose(found, loss.item(), rtol=1e-4)
    for key, slope in zip(params, expected, strict=True):
        np.testing.assert_allclose(gradients[key], slope, rtol=1e-3, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", CONTINUOUS_FILES)
def test_the_gradients_of_the_continuous_agent_come_in_the_order_of_its_parameters(name):
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)), single_action_space=SimpleNamespace(shape=(2,))
    )
    agent = module(name).Agent(spaces)
    obs = torch.randn(7, 5)
    (means, values), pull = agent.vjp(obs)
    torch.testing.assert_close(means, agent.actor_mean(obs).detach())
    torch.testing.assert_close(values, agent.critic(obs).squeeze(-1).detach())
    d_means, d_values, d_logstd = torch.randn(7, 2), torch.randn(7), torch.randn(1, 2)
    scalar = (agent.actor_mean(obs) * d_means).sum() + (agent.critic(obs).squeeze(-1) * d_values).sum()
    scalar = scalar + (agent.actor_logstd * d_logstd).sum()
    expected = torch.autograd.grad(scalar, list(agent.parameters()))
    torch.testing.assert_close(tuple(pull(d_means, d_values, d_logstd)), expected)


def test_the_gradients_of_pqn_are_those_of_autograd():
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)), single_action_space=SimpleNamespace(n=3)
    )
    network = module("pqn").QNetwork(spaces)
    obs, slopes = torch.randn(7, 5), torch.randn(7, 3)
    for parameter in network.parameters():  # as training leaves them: no norm's scale is 1, no shift 0
        parameter.data += 0.1 * torch.randn_like(parameter)
    values, pull = network.vjp(obs)
    torch.testing.assert_close(values, network(obs).detach())
    expected = torch.autograd.grad((network(obs) * slopes).sum(), list(network.parameters()))
    torch.testing.assert_close(tuple(pull(slopes)), expected)


def test_the_gradients_of_dqn_are_those_of_autograd():
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)), single_action_space=SimpleNamespace(n=3)
    )
    dqn = module("dqn")
    network = dqn.QNetwork(spaces)
    obs, actions, targets = torch.randn(7, 5), torch.tensor([0, 2, 1, 1, 0, 2, 0]), torch.randn(7)
    taken = network(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
    loss = torch.nn.functional.mse_loss(taken, targets)
    values, pull = network.network.vjp(obs)
    found, old_values, gradient = dqn.squared_error(values, actions, targets)
    torch.testing.assert_close((found, old_values), (loss.detach(), taken.detach()))
    torch.testing.assert_close(tuple(pull(gradient)), torch.autograd.grad(loss, list(network.parameters())))


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float64, 1e-10, 1e-10), (torch.float32, 1e-4, 1e-6)])
@pytest.mark.parametrize("name", ["td3_continuous_action", "ddpg_continuous_action"])
def test_the_gradients_of_a_deterministic_actor_are_those_of_autograd(name, dtype, rtol, atol, batch):
    torch.manual_seed(0)
    limits = np.array([1.0, 2.5], np.float32)
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)),
        single_action_space=SimpleNamespace(shape=(2,), low=-limits, high=limits + 0.5),
    )
    actor = module(name).Actor(spaces, hidden=16).to(dtype)
    obs, slopes = torch.randn(batch, 5, dtype=dtype), torch.randn(batch, 2, dtype=dtype)
    squashed = torch.tanh(actor.fc_mu(torch.relu(actor.fc2(torch.relu(actor.fc1(obs))))))
    expected = squashed * actor.action_scale + actor.action_bias
    actions, pull = actor.vjp(obs)
    torch.testing.assert_close(actions, expected.detach(), rtol=rtol, atol=atol)
    torch.testing.assert_close(actor(obs), expected.detach(), rtol=rtol, atol=atol)
    gradients = torch.autograd.grad((expected * slopes).sum(), list(actor.parameters()))
    torch.testing.assert_close(tuple(pull(slopes)), gradients, rtol=rtol, atol=atol)


def test_the_noise_on_the_actions_of_a_td3_target_stays_in_the_action_range():
    low, high = np.array([-1.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32)
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)),
        single_action_space=SimpleNamespace(shape=(2,), low=low, high=high),
    )
    actor = module("td3_continuous_action").Actor(spaces)
    obs, noise = torch.randn(64, 5), torch.randn(64, 2)
    expected = (actor(obs) + noise * actor.action_scale).clamp(torch.tensor(low), torch.tensor(high))
    torch.testing.assert_close(actor(obs, noise), expected)


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float64, 1e-10, 1e-10), (torch.float32, 1e-4, 1e-6)])
def test_the_gradients_of_the_critic_of_ddpg_are_those_of_autograd(dtype, rtol, atol, batch):
    torch.manual_seed(0)
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)), single_action_space=SimpleNamespace(shape=(2,))
    )
    critic = module("ddpg_continuous_action").QNetwork(spaces, hidden=16).to(dtype)
    obs, target = torch.randn(batch, 5, dtype=dtype), torch.randn(batch, dtype=dtype)
    actions = torch.randn(batch, 2, dtype=dtype, requires_grad=True)
    hidden = torch.relu(critic.fc2(torch.relu(critic.fc1(torch.cat([obs, actions], dim=1)))))
    expected = critic.fc3(hidden).squeeze(-1)
    values, pull = critic.vjp(obs, actions.detach())
    gradients = torch.autograd.grad(
        torch.nn.functional.mse_loss(expected, target), list(critic.parameters()), retain_graph=True
    )
    torch.testing.assert_close(tuple(pull((values - target) * (2.0 / batch))), gradients, rtol=rtol, atol=atol)
    again, slopes = critic.slopes(obs, actions.detach())
    torch.testing.assert_close((values, again), (expected.detach(), expected.detach()), rtol=rtol, atol=atol)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected.sum(), actions)[0], rtol=rtol, atol=atol)


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float64, 1e-10, 1e-10), (torch.float32, 1e-3, 1e-5)])
def test_the_gradients_of_the_actor_of_sac_are_those_of_autograd(dtype, rtol, atol, batch):
    torch.manual_seed(0)
    limits = np.array([1.0, 2.5], np.float32)
    spaces = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(5,)),
        single_action_space=SimpleNamespace(shape=(2,), low=-limits, high=limits + 0.5),
    )
    actor = module("sac_continuous_action").Actor(spaces, hidden=16).to(dtype)
    obs, d_actions = torch.randn(batch, 5, dtype=dtype), torch.randn(batch, 2, dtype=dtype)
    weight = torch.tensor([0.3], dtype=dtype)
    torch.manual_seed(1)
    noise = torch.randn(batch, 2, dtype=dtype)
    hidden = torch.relu(actor.fc2(torch.relu(actor.fc1(obs))))
    gaussian = torch.distributions.Normal(
        actor.fc_mean(hidden), (-5.0 + 3.5 * (torch.tanh(actor.fc_logstd(hidden)) + 1.0)).exp()
    )
    drawn = gaussian.mean + gaussian.stddev * noise
    expected = torch.tanh(drawn) * actor.action_scale + actor.action_bias
    volume = torch.log(actor.action_scale * (1.0 - torch.tanh(drawn) ** 2) + 1e-6)
    expected_logprobs = (gaussian.log_prob(drawn) - volume).sum(dim=1)
    torch.manual_seed(1)
    (actions, logprobs), pull = actor.vjp(obs)
    torch.testing.assert_close(actions, expected.detach(), rtol=rtol, atol=atol)
    torch.testing.assert_close(logprobs, expected_logprobs.detach(), rtol=rtol, atol=atol)
    scalar = (expected * d_actions).sum() + (weight * expected_logprobs).sum()
    gradients = torch.autograd.grad(scalar, list(actor.parameters()))
    torch.testing.assert_close(tuple(pull(d_actions, weight)), gradients, rtol=rtol, atol=atol)
