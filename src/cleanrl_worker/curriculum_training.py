"""Curriculum training under its public name."""

from cleanrl_worker.run.curriculum_training import run_curriculum_training as run_curriculum_training
