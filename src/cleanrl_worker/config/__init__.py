"""The config of a worker."""

from cleanrl_worker.config.config import CleanRLWorkerConfig as CleanRLWorkerConfig
from cleanrl_worker.config.config import WorkerConfig as WorkerConfig
from cleanrl_worker.config.config import load_worker_config as load_worker_config
from cleanrl_worker.config.config import parse_worker_config as parse_worker_config
