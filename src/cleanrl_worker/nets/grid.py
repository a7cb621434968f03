"""Actor-critic network for grid worlds: convolutions on the nearby cells, optionally a mission and a memory."""

from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import nn

from cleanrl_worker.nets.layers import Pullback, flat_size, numbers, orthogonal

VOCABULARY = 256  # a word is a byte
FEATURES = 128
KNOWN = 4096  # cached grid features of an acting policy: 2 MB
# Cells hold numbers from 0 to 10 and are divided by 255: this gain of the first weights undoes it, so that the first
# features neither are all alike nor vanish against the later layers' biases.
FIRST_GAIN = 2**0.5 * 255 / 10


class MinigridCNN(nn.Module):
    """A network from cells (object, colour, state; one byte each) to 128 features, optionally with a mission's FiLM."""

    def __init__(self, side: int = 7) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            orthogonal(nn.Conv2d(3, 32, 3, padding=1), FIRST_GAIN),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 3, padding=1)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, padding=1)),
            nn.ReLU(),
        )
        self.linear = orthogonal(nn.Linear(64 * side * side, FEATURES))

    def forward(self, cells: torch.Tensor, channels: torch.Tensor | None = None) -> torch.Tensor:
        """Encode `cells` (rows, side, side, 3); `channels` (rows, 128): FiLM's scales and shifts (arXiv:1709.07871)."""
        seen = self.convolutions(cells.permute(0, 3, 1, 2) / 255)
        if channels is not None:
            scales, shifts = channels[:, :, None, None].chunk(2, dim=1)
            seen = torch.relu(seen * (1 + scales) + shifts)
        return torch.relu(self.linear(seen.flatten(1)))


class MissionEncoder(nn.Module):
    """An encoder from words to the channels' scales and shifts: a convolution over three words, then a maximum."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size, padding_idx=0)
        self.phrases = nn.Conv1d(size, 64, 3, padding=1)
        self.channels = orthogonal(nn.Linear(64, 2 * 64), gain=0.1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        phrases = torch.relu(self.phrases(self.words(words.long()).transpose(1, 2)))
        return self.channels(phrases.amax(dim=2))


class MinigridAgent(nn.Module):
    """Policy and value from the features of one grid, or with `memory` from a GRU's state over the episode."""

    def __init__(self, envs: Any, words: int = 0, memory: bool = False) -> None:
        super().__init__()
        # an observation is (side, side, 3), or one row with the mission's words after the cells
        self.cells = flat_size(envs.single_observation_space.shape) - words
        self.side = isqrt(self.cells // 3)
        self.network = MinigridCNN(self.side)
        self.mission = MissionEncoder() if words else None
        self.memory = orthogonal_cell(nn.GRUCell(FEATURES, FEATURES)) if memory else None
        self.actor = _head(int(envs.single_action_space.n), gain=0.01)
        self.critic = _head(1, gain=1.0)

    def forward(
        self, obs: torch.Tensor, kept: torch.Tensor | None = None, starts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and values; with a memory, for steps in temporal order (see `remember`)."""
        features = self.features(obs)
        if kept is not None and starts is not None:
            features = self.remember(features, kept, starts)
        return self.actor(features), self.critic(features).squeeze(-1)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the features of each observation; grids repeat often, and each is computed once."""
        rows = obs.reshape(len(obs), -1)
        if rows.device.type != "cpu":  # there, finding duplicates costs more than computing all
            return self._features(rows)
        whole = rows.numpy().astype(np.uint8)
        _, first, same = np.unique(whole.view(f"V{whole.shape[1]}"), return_index=True, return_inverse=True)
        return self._features(rows[torch.from_numpy(first)])[torch.from_numpy(same.reshape(-1))]

    def _features(self, rows: torch.Tensor) -> torch.Tensor:
        cells = rows[:, : self.cells].reshape(-1, self.side, self.side, 3)
        return self.network(cells, None if self.mission is None else self.mission(rows[:, self.cells :]))

    def remember(self, features: torch.Tensor, kept: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Return the memory after each step; features have (steps × environments) rows, starts (steps, environments).

        `kept` is the memory before the first step; a start resets it.
        """
        assert self.memory is not None
        known = []
        for seen, begins in zip(features.reshape(*starts.shape, FEATURES), starts, strict=True):
            kept = self.memory(seen, kept * (1.0 - begins.unsqueeze(1)))
            known.append(kept)
        return torch.cat(known)

    def vjp(self, obs: torch.Tensor, *context: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], Pullback]:
        """Return logits and values, and the pullback from their gradients to the parameters'."""
        outputs = self(obs, *context)
        return outputs, lambda *gradients: torch.autograd.grad(outputs, list(self.parameters()), gradients)

    def numpy_policy(self) -> "GridPolicy":
        """Return a function from observations to logits, for acting."""
        return GridPolicy(self)


class GridPolicy:
    """A policy from observations to logits, both in numpy; a recurrent one also keeps its environments' memory.

    Between two updates the same grids repeat often: their features are cached.
    """

    def __init__(self, agent: MinigridAgent) -> None:
        self._agent = agent
        self._device = next(agent.parameters()).device
        self.kept = torch.zeros(1, FEATURES, device=self._device)
        self._known: dict[bytes, torch.Tensor] = {}

    @torch.no_grad()
    def __call__(self, obs: np.ndarray) -> np.ndarray:
        rows = obs.astype(np.uint8).reshape(len(obs), -1)
        keys = [row.tobytes() for row in rows]
        new = {key: row for key, row in zip(keys, obs, strict=True) if key not in self._known}
        known = self._known
        if new:
            if len(known) > KNOWN:
                known = self._known = {key: known[key] for key in keys if key in known}
            found = self._agent.features(numbers(np.stack([*new.values()]), self._device))
            known.update(zip(new, found, strict=True))
        features = torch.stack([known[key] for key in keys])
        if self._agent.memory is not None:
            self.kept = features = self._agent.memory(features, self.kept)
        logits: np.ndarray = self._agent.actor(features).cpu().numpy()
        return logits

    def clear(self, rows: int) -> None:
        """Reset the memory, for this number of environments."""
        self.kept = torch.zeros(rows, FEATURES, device=self._device)

    def context(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the arguments of `MinigridAgent.remember` for the next observations, which continue the episodes."""
        return self.kept, self.kept.new_zeros(1, len(self.kept))

    def forget(self, which: np.ndarray) -> None:
        """Reset the memory of the environments where `which` is 1."""
        if which.any():
            self.kept = self.kept * (1.0 - numbers(which, self._device).unsqueeze(1))

    def refresh(self) -> None:
        """Discard the features cached with earlier weights."""
        self._known = {}


def orthogonal_cell(cell: nn.GRUCell) -> nn.GRUCell:
    """Initialise each gate with orthogonal weights, no bias: the memory initially neither grows nor decays."""
    for weight in (cell.weight_ih, cell.weight_hh):
        for gate in weight.chunk(3):
            nn.init.orthogonal_(gate)
    nn.init.zeros_(cell.bias_ih)
    nn.init.zeros_(cell.bias_hh)
    return cell


def _head(outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(FEATURES, FEATURES)), nn.ReLU(), orthogonal(nn.Linear(FEATURES, outputs), gain)
    )
