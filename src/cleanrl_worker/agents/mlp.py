"""`MLPAgent` under its public name."""

from cleanrl_worker.nets.mlp import MLPAgent as MLPAgent
