"""Evaluation of saved policies."""

from cleanrl_worker.evaluation.batched import EvalArgs as EvalArgs
from cleanrl_worker.evaluation.batched import main as main
from cleanrl_worker.evaluation.batched import run_batched_evaluation as run_batched_evaluation
