"""The curricula for grid worlds under their public names."""

from cleanrl_worker.envs.curriculum import BABYAI_DOORKEY_CURRICULUM as BABYAI_DOORKEY_CURRICULUM
from cleanrl_worker.envs.curriculum import BABYAI_GOTO_CURRICULUM as BABYAI_GOTO_CURRICULUM
from cleanrl_worker.envs.curriculum import __getattr__ as __getattr__  # BabyAITaskWrapper
from cleanrl_worker.envs.curriculum import make_curriculum_env as make_curriculum_env
