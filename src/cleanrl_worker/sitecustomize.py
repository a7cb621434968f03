"""The patch of `gymnasium.make` under its public name."""

from cleanrl_worker.foreign.sitecustomize import install as install
