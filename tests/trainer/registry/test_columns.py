"""The registry's columns of a submission."""

import pytest

from mosaic.contract.job import JobConfig
from mosaic.trainer.registry.columns import columns_of
from mosaic.trainer.scheduling.gpu import Claim


@pytest.mark.parametrize("total", [1, 256, 1 << 62, (1 << 63) - 1])
def test_every_accepted_total_is_stored_as_submitted(total: int) -> None:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": total}
    job = JobConfig.parse({"metadata": {"worker": {"config": config}}})
    assert columns_of(job, config, Claim())["total_timesteps"] == total
