"""`MinigridCNN` and `MinigridAgent` under their public names."""

from cleanrl_worker.nets.grid import MinigridAgent as MinigridAgent
from cleanrl_worker.nets.grid import MinigridCNN as MinigridCNN
