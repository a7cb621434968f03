"""Rainbow's own parts: draws by surprise, looks ahead over several steps, layers with noise."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_worker.algorithms.rainbow_atari import NoisyLinear, Priorities, QNetwork, look_ahead
from cleanrl_worker.envs.episodes import Step
from cleanrl_worker.learn.frame_buffer import FrameReplay

SHAPE = (4, 2, 2)


def filled(steps, num_envs=2, capacity=64, terminated=(), truncated=()):
    """A memory whose rewards count the steps; the environments' episodes end after the steps that are named."""
    memory, obs = FrameReplay(capacity, SHAPE), np.zeros((num_envs, *SHAPE), np.uint8)
    for step in range(steps):
        frame = np.full((num_envs, 1, 2, 2), step % 250 + 1, np.uint8)
        final = np.concatenate([obs[:, 1:], frame], axis=1)
        ends = [np.full(num_envs, step in named) for named in (terminated, truncated)]
        after = np.zeros_like(final) if (ends[0] | ends[1]).any() else final
        memory.add(obs, np.zeros(num_envs, int), Step(after, np.full(num_envs, float(step)), *ends, final, []))
        obs = after
    return memory


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_look_ahead_adds_the_rewards_of_its_episode_only(n_step):
    memory = filled(12, terminated=(4,), truncated=(8,))
    numbers = np.arange(24)
    found = look_ahead(memory, numbers, n_step, 0.9)
    for number in numbers:
        step = number // 2
        last = min(step + n_step - 1, next(end for end in (4, 8, 11) if end >= step))
        steps = range(step, last + 1)
        assert found.returns[number] == pytest.approx(sum(0.9 ** (at - step) * at for at in steps))
        assert found.discounts[number] == pytest.approx(0.0 if last == 4 else 0.9 ** len(steps))
        assert found.last[number] == 2 * last + number % 2


def test_transitions_are_drawn_as_often_as_they_surprise_and_weighed_against_it():
    memory = filled(2000, capacity=3000)  # more than one block of sums, and overwritten in part
    priorities, rng = Priorities(memory, alpha=0.5), np.random.default_rng(0)
    priorities.admit()
    held = np.arange(memory.first, memory.added)
    surprise = rng.random(len(held)) + 0.01
    priorities.update(held, surprise)
    counts = np.zeros(len(held))
    for _ in range(30):
        drawn, weights = priorities.draw(1000, 0.7, rng)
        counts += np.bincount(drawn - memory.first, minlength=len(held))
    shares = surprise**0.5 / (surprise**0.5).sum()
    found, expected = ((each.reshape(30, 100).sum(axis=1) / each.sum()) for each in (counts, shares))
    assert np.abs(found / expected - 1.0).max() < 0.2
    expected = (len(held) * shares[drawn - memory.first]) ** -0.7
    assert np.allclose(weights, expected / expected.max())


def test_what_the_memory_has_lost_is_never_drawn_and_what_is_new_soon():
    memory = filled(30, capacity=40)
    priorities, rng = Priorities(memory, alpha=1.0), np.random.default_rng(0)
    priorities.admit()
    priorities.update(np.arange(memory.first, memory.added), np.full(40, 3.0))
    obs = np.ones((2, *SHAPE), np.uint8)
    nowhere = np.zeros(2, bool)
    memory.add(obs, np.zeros(2, int), Step(obs, np.zeros(2), nowhere, nowhere, obs, []))
    memory.forget()
    memory.add(obs, np.zeros(2, int), Step(obs, np.zeros(2), nowhere, nowhere, obs, []))
    priorities.admit()
    drawn, weights = priorities.draw(100, 0.5, rng)
    assert set(drawn) == {memory.added - 2, memory.added - 1} and np.all(weights == 1.0)


def test_priorities_draw_the_same_after_they_were_saved():
    memory = filled(500, capacity=2000)
    first, again = Priorities(memory, 0.5), Priorities(memory, 0.5)
    first.admit()
    first.update(np.arange(100, 300), np.random.default_rng(1).random(200))
    again.load_state_dict(first.state_dict())
    for priorities in (first, again):
        priorities.admit()
    drawn = [priorities.draw(64, 0.4, np.random.default_rng(2)) for priorities in (first, again)]
    assert all(np.array_equal(*pair) for pair in zip(*drawn, strict=True))


def test_noise_is_that_of_weights_multiplied_out():
    torch.manual_seed(3)
    layer = NoisyLinear(6, 4)
    layer.draw_noise()
    x = torch.randn(5, 6)
    weight = layer.weight_mu + layer.weight_sigma * torch.outer(layer.noise_out, layer.noise_in)
    torch.testing.assert_close(layer(x), x @ weight.T + layer.bias_mu + layer.bias_sigma * layer.noise_out)
    torch.testing.assert_close(layer.eval()(x), x @ layer.weight_mu.T + layer.bias_mu)


def test_advantages_only_tell_actions_apart():
    spaces = SimpleNamespace(single_action_space=SimpleNamespace(n=3))
    network = QNetwork(spaces, torch.linspace(-1, 1, 5)).eval()
    obs = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        value = network.value_head(network.network(obs / 255.0))
        torch.testing.assert_close(network(obs).mean(dim=1), value, rtol=1e-4, atol=1e-5)
