"""Saved policies under their public name."""

from cleanrl_worker.evaluation.policy_loader import SavedPolicy as SavedPolicy
from cleanrl_worker.evaluation.policy_loader import build_policy as build_policy
from cleanrl_worker.evaluation.policy_loader import read_policy as read_policy
