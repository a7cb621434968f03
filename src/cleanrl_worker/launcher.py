"""The launcher under its public name."""

from cleanrl_worker.foreign.launcher import main as main
