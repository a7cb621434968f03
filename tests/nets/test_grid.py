from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_worker.nets.grid import FEATURES, MinigridAgent, MinigridCNN

WORDS = 5


def spaces(words=0):
    shape = (147 + words,) if words else (7, 7, 3)
    return SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=shape), single_action_space=SimpleNamespace(n=7)
    )


def grids(rows, words=0):
    """Random ones, of which every second is the same."""
    seen = torch.randint(0, 11, (rows, 147 + words)).float()
    seen[::2] = seen[0].clone()
    return seen if words else seen.reshape(rows, 7, 7, 3)


def test_the_network_has_the_layers_that_are_documented():
    shapes = {
        key: tuple(value.shape) for key, value in MinigridAgent(spaces()).state_dict().items() if "bias" not in key
    }
    assert shapes == {
        "network.convolutions.0.weight": (32, 3, 3, 3),
        "network.convolutions.2.weight": (64, 32, 3, 3),
        "network.convolutions.4.weight": (64, 64, 3, 3),
        "network.linear.weight": (128, 3136),
        "actor.0.weight": (128, 128),
        "actor.2.weight": (7, 128),
        "critic.0.weight": (128, 128),
        "critic.2.weight": (1, 128),
    }


def test_bytes_of_cells_are_divided_by_255_and_become_channels():
    network = MinigridCNN()
    seen = []
    network.convolutions.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    cells = grids(2)
    network(cells)
    torch.testing.assert_close(seen[0], cells.permute(0, 3, 1, 2) / 255)


@pytest.mark.parametrize("words", [0, WORDS])
@pytest.mark.parametrize("memory", [False, True])
def test_acting_step_by_step_gives_the_logits_of_learning_from_all_steps(words, memory):
    agent = MinigridAgent(spaces(words), words, memory)
    for parameter in agent.actor.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    steps, rows = 4, 3
    obs, ends = grids(steps * rows, words), np.zeros((steps, rows), np.float32)
    ends[1, 2] = ends[2, 0] = 1
    policy = agent.numpy_policy()
    policy.clear(rows)
    acted = []
    for t in range(steps):
        acted.append(policy(obs[t * rows : (t + 1) * rows].numpy()))
        policy.forget(ends[t])
    starts = torch.from_numpy(np.concatenate([np.zeros((1, rows), np.float32), ends[:-1]]))
    logits, values = agent(obs, *((torch.zeros(rows, FEATURES), starts) if memory else ()))
    assert values.shape == (steps * rows,)
    np.testing.assert_allclose(np.concatenate(acted), logits.detach().numpy(), atol=1e-5)


def test_a_memory_tells_episodes_apart_by_what_came_before():
    agent = MinigridAgent(spaces(), memory=True)
    first, other, now = grids(1), grids(1), grids(1)
    policy = agent.numpy_policy()
    answers = []
    for before in (first, other, first):
        policy.clear(1)
        policy(before.numpy())
        answers.append(policy(now.numpy()))
    assert (answers[0] == answers[2]).all() and (answers[0] != answers[1]).any()


def test_equal_grids_are_computed_once_and_get_the_gradients_of_all():
    agent = MinigridAgent(spaces(WORDS), WORDS)
    obs = grids(6, WORDS)
    rows = []
    agent.network.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    (logits, values), pull = agent.vjp(obs)
    assert rows == [4]
    gradients = torch.randn(6, 7), torch.randn(6)
    one_by_one = agent._features(obs)
    plain = agent.actor(one_by_one), agent.critic(one_by_one).squeeze(-1)
    torch.testing.assert_close((logits, values), plain)
    scalar = (plain[0] * gradients[0]).sum() + (plain[1] * gradients[1]).sum()
    expected = torch.autograd.grad(scalar, list(agent.parameters()))
    torch.testing.assert_close(tuple(pull(*gradients)), expected, atol=1e-5, rtol=1e-4)
