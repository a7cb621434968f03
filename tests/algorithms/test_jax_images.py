"""The JAX algorithms for images compute what their torch siblings do: of equal weights, equal losses and gradients."""

from types import SimpleNamespace

from cleanrl_worker.nets.jax.trees import arrays_of, outputs_of, params_of

import gymnasium as gym
import jax
import numpy as np
import torch
from torch.nn import functional as F

from cleanrl_worker.algorithms import c51_atari, c51_atari_jax, dqn_atari, dqn_atari_jax
from cleanrl_worker.algorithms import qdagger_dqn_atari_impalacnn as qdagger
from cleanrl_worker.algorithms import qdagger_dqn_atari_jax_impalacnn as qdagger_jax
from cleanrl_worker.learn import dqn_files
from cleanrl_worker.learn.buffers import Transitions
from cleanrl_worker.nets.jax.images import ImpalaNetwork, NatureNetwork

SPACES = SimpleNamespace(
    single_observation_space=gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), single_action_space=gym.spaces.Discrete(3)
)
FRAMES = np.random.default_rng(1).integers(0, 256, (4, 5, 84, 84), dtype=np.uint8)
SAMPLE = Transitions(
    obs=FRAMES[:, :-1],
    actions=np.array([0, 2, 1, 1]),
    rewards=np.array([1.0, -1.0, 0.5, 0.0], np.float32),
    next_obs=FRAMES[:, 1:],
    terminations=np.array([0.0, 1.0, 0.0, 1.0], np.float32),
)


def weights_of(network):
    return {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}


def both(torch_network, network):
    """A network of torch's and parameters for one of flax's, of equal weights."""
    torch.manual_seed(0)
    made = torch_network(SPACES)
    return made, params_of(network, dqn_files.as_flax(weights_of(made)), SAMPLE.obs)


def same_gradients(network, momentum):
    """Adam's first momentum is a tenth of the gradient."""
    for name, array in dqn_files.as_torch(arrays_of({"params": momentum})).items():
        expected = network.get_parameter(name).grad.numpy()
        np.testing.assert_allclose(10 * array, expected, atol=1e-5 * abs(expected).max(), rtol=1e-3, err_msg=name)


def test_an_update_of_dqn_is_that_of_torch():
    network = NatureNetwork(3)
    online, params = both(dqn_atari.QNetwork, network)
    values, next_values = (online(torch.tensor(frames)) for frames in (SAMPLE.obs, SAMPLE.next_obs))
    found = jax.jit(outputs_of, static_argnums=0)(network, params, SAMPLE.obs)
    np.testing.assert_allclose(found, values.detach().numpy(), atol=1e-5)
    alive = 1 - torch.tensor(SAMPLE.terminations)
    target = torch.tensor(SAMPLE.rewards) + 0.99 * alive * next_values.detach().max(dim=1).values
    taken = values[torch.arange(4), torch.tensor(SAMPLE.actions)]
    expected = F.mse_loss(taken, target)
    expected.backward()

    recipe = dqn_atari_jax.Recipe(1e-4, 0.99)
    learner = dqn_atari_jax.first_learner(recipe, params)
    learner, loss, value = dqn_atari_jax.update(network, recipe, learner, SAMPLE)
    np.testing.assert_allclose((loss, value), (expected.item(), taken.mean().item()), rtol=1e-4)
    same_gradients(online, learner.optimizer[0].mu)
    moved = zip(arrays_of(learner.params).values(), arrays_of(params).values(), strict=True)
    assert all(0 < np.abs(new - old).max() < 1.1e-4 for new, old in moved)


def test_an_update_of_c51_is_that_of_torch():
    network, atoms, rows = NatureNetwork(3 * 51), torch.linspace(-10, 10, 51), torch.arange(4)
    online, params = both(lambda spaces: c51_atari.QNetwork(spaces, atoms), network)
    with torch.no_grad():
        next_pmfs = online(torch.tensor(SAMPLE.next_obs)).softmax(dim=2)
        best = next_pmfs[rows, (next_pmfs @ atoms).argmax(dim=1)]
        given = (torch.tensor(SAMPLE.rewards), 1 - torch.tensor(SAMPLE.terminations))
        target = c51_atari.project(best, *given, atoms, 0.99)
    logpmfs = F.log_softmax(online(torch.tensor(SAMPLE.obs))[rows, torch.tensor(SAMPLE.actions)], dim=1)
    expected = -(target * logpmfs).sum(dim=1).mean()
    expected.backward()

    recipe = c51_atari_jax.Recipe(2.5e-4, 51, -10.0, 10.0, 0.99, 4)
    learner = c51_atari_jax.first_learner(recipe, params)
    learner, loss, value = c51_atari_jax.update(network, recipe, learner, SAMPLE)
    old_values = (logpmfs.detach().exp() @ atoms).mean().item()
    np.testing.assert_allclose((loss, value), (expected.item(), old_values), rtol=1e-3, atol=1e-5)
    same_gradients(online, learner.optimizer[0].mu)


def test_an_update_of_qdagger_is_that_of_torch():
    network, of_teacher = ImpalaNetwork(3), NatureNetwork(3)
    teacher, teacher_params = both(dqn_atari.QNetwork, of_teacher)
    online, params = both(lambda spaces: qdagger.QNetwork(spaces, of_flax=True), network)
    values, next_values = (online(torch.tensor(frames)) for frames in (SAMPLE.obs, SAMPLE.next_obs))
    alive = 1 - torch.tensor(SAMPLE.terminations)
    target = torch.tensor(SAMPLE.rewards) + 0.99 * alive * next_values.detach().max(dim=1).values
    taken = values[torch.arange(4), torch.tensor(SAMPLE.actions)]
    td_loss, opinion = F.mse_loss(taken, target), F.log_softmax(teacher(torch.tensor(SAMPLE.obs)).detach(), dim=1)
    distill_loss = F.kl_div(F.log_softmax(values, dim=1), opinion, reduction="sum", log_target=True)
    expected = td_loss + 0.3 * distill_loss
    expected.backward()

    recipe = qdagger_jax.Recipe(1e-4, 0.99, 1.0)
    learner = qdagger_jax.first_learner(recipe, params)
    weight = np.float32(0.3)
    learner, losses = qdagger_jax.update(network, of_teacher, recipe, learner, teacher_params, SAMPLE, weight)
    told = [part.item() for part in (expected, distill_loss, td_loss, taken.mean())]
    np.testing.assert_allclose(losses, told, rtol=1e-3, atol=1e-5)
    same_gradients(online, learner.optimizer[0].mu)
