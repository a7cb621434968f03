"""Executors: local processes, and jobs of Slurm or Ray."""
