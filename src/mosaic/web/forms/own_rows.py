"""The forms' own fields, besides an algorithm's parameters."""

from __future__ import annotations

from typing import Any

from mosaic.contract.job import parse_resources
from mosaic.contract.settings import EXECUTORS
from mosaic.store.storage import OFF, check_url
from mosaic.web.forms.rows import Row

MODES = ("single", "grid", "off")
SEED_LIMIT = 2**32 - 1
# The field that no browser may keep and no form shows twice.
SECRET = "wandb_api_key"
# Stands for the daemon's own choice.
DEFAULT_EXECUTOR = "default"


class StorageRow(Row):
    """The URL of a store, "none", or empty."""

    def read(self, given: Any) -> str:
        text = str(given or "").strip()
        return text if not text or text.lower() == OFF else check_url(text, self.title)


class ResourcesRow(Row):
    """The required resources of the machine, one per line."""

    def read(self, given: Any) -> str:
        text = str(given or "").strip()
        parse_resources(text)
        return text


def _rows(*rows: Row) -> dict[str, Row]:
    return {row.name: row for row in rows}


NAMES = _rows(
    Row(name="run_name", label="Run name", help="to find it by; may be left empty"),
    Row(name="agent_id", label="Agent id", help="kept with the run and its telemetry"),
    Row(name="worker_id", label="Worker id", help="empty: one is made up from the run id"),
    Row(name="notes", label="Notes", help="what you want to remember of this run"),
)
LIMITS = _rows(
    Row(
        name="max_restarts",
        label="Restarts",
        type="int",
        default=0,
        least=0,
        help="how often a failed run is tried again",
    ),
    Row(
        name="max_duration_minutes",
        label="Duration limit (minutes)",
        type="float",
        default=None,
        optional=True,
        least=0.01,
        help="the run is ended gently after that; empty: no limit",
    ),
    Row(
        name="dry_run_only",
        label="Dry run only",
        type="bool",
        default=False,
        help="submits a run that only checks itself",
    ),
)
LANE = _rows(
    Row(
        name="fastlane_mode",
        label="Live view",
        default="single",
        choices=MODES,
        help="one environment, a grid of them, or nothing; unwatched it costs nothing",
    ),
    Row(
        name="fastlane_slot",
        label="Environment shown",
        type="int",
        default=0,
        least=0,
        help="which one the single view shows, counted from 0",
    ),
    Row(
        name="fastlane_grid_limit",
        label="Grid limit",
        type="int",
        default=None,
        optional=True,
        least=0,
        most=256,
        help="most environments in a grid; empty: 8",
    ),
)
MACHINE = _rows(
    Row(name="gpu", label="GPU", type="bool", default=True, help="waits for a free one; the CPU where there is none"),
    Row(
        name="executor",
        label="Where it runs",
        default=DEFAULT_EXECUTOR,
        choices=(DEFAULT_EXECUTOR, *EXECUTORS),
        help="this machine, a Ray cluster or Slurm; default: as the daemon's settings say",
    ),
    StorageRow(
        name="storage_url",
        label="Storage",
        help="file:///folder or s3://bucket/folder keeps a copy there; a machine that does not see this home needs one",
    ),
    ResourcesRow(
        name="resources",
        label="Resources",
        help="one a line: cpus=4, memory_mb=8000, slurm.partition=gpu, slurm.time=4:00:00, ray.custom.a100=1",
    ),
)
TRACKING = _rows(
    Row(
        name="tensorboard",
        label="TensorBoard",
        type="bool",
        default=True,
        help="write event files for the TensorBoard tab",
    ),
    Row(name="track_wandb", label="Weights & Biases", type="bool", default=False, help="offline where there is no key"),
)
WANDB = _rows(
    Row(name="wandb_project_name", label="Project", help="empty: cleanRL"),
    Row(name="wandb_entity", label="Entity", help="team or user; empty: the key's own"),
    Row(name="wandb_run_name", label="W&B run name", help="empty: environment, algorithm, seed and time"),
    Row(name="wandb_email", label="E-mail", help="of the W&B account"),
    Row(name=SECRET, label="API key", help="used for this submission, never stored, never shown again"),
    Row(name="wandb_use_vpn_proxy", label="Through a proxy", type="bool", default=False, help="W&B's requests only"),
    Row(name="wandb_http_proxy", label="HTTP proxy", help="for example http://proxy:3128"),
    Row(name="wandb_https_proxy", label="HTTPS proxy", help="for example http://proxy:3128"),
)
TRAIN = _rows(
    Row(name="algo", label="Algorithm", default="ppo", help="a name of the list, or the path of a script of your own"),
    Row(
        name="env_id",
        label="Environment id",
        default="CartPole-v1",
        needed=True,
        help="from the catalog, or any id; module:Id for your own",
    ),
    Row(
        name="total_timesteps",
        label="Total timesteps",
        type="int",
        default=2048,
        least=1,
        most=10**15,  # decades at a million steps a second; more digits are a typing error
        help="2,048 is a smoke test; the algorithm's own default stands above",
    ),
    Row(
        name="seeds", label="Seed or seeds", default="", help="0 or empty draws one; 1-5 or 1,2,7 starts a run for each"
    ),
)
RESUME = _rows(
    Row(
        name="checkpoint_path",
        label="Checkpoint",
        plain=True,
        help="choose one from the list, or give a path inside the home",
    ),
    Row(
        name="additional_timesteps",
        label="Additional timesteps",
        type="int",
        default=None,
        optional=True,
        least=1,
        help="on top of what was done; empty: to the end that it had",
    ),
    Row(name="env_id", label="Environment", help="empty: as it was; needed for one that imports a module of your own"),
    Row(
        name="seed",
        label="Seed",
        type="int",
        default=None,
        optional=True,
        least=0,
        most=SEED_LIMIT,
        help="empty: as it was",
    ),
)
POLICY = _rows(
    Row(
        name="policy_path",
        label="Policy file",
        plain=True,
        help="choose one from the list, upload one, or give a path inside the home",
    ),
    Row(name="env_id", label="Environment", help="another one needs the same observations and actions"),
    Row(name="algo", label="Algorithm", help="that wrote the policy"),
    Row(
        name="seed",
        label="Training seed",
        type="int",
        default=None,
        optional=True,
        least=0,
        most=SEED_LIMIT,
        help="of the training; episodes are seeded by it unless you give another",
    ),
)
EVALUATION = _rows(
    Row(
        name="episodes", label="Episodes per batch", type="int", default=50, least=1, help="one summary is made of them"
    ),
    Row(
        name="repeat",
        label="Repeat until stopped",
        type="bool",
        default=False,
        help="batch after batch of new episodes",
    ),
    Row(
        name="greedy", label="Greedy", type="bool", default=False, help="the likeliest action instead of a sampled one"
    ),
    Row(
        name="eval_seed",
        label="Evaluation seed",
        type="int",
        default=None,
        optional=True,
        least=0,
        most=SEED_LIMIT,
        help="empty: the training's seed",
    ),
    Row(
        name="gamma",
        label="Gamma",
        type="float",
        default=None,
        optional=True,
        least=0,
        most=1,
        help="discount of the discounted return; empty: the training's",
    ),
    Row(
        name="max_episode_steps",
        label="Step limit",
        type="int",
        default=None,
        optional=True,
        least=0,
        help="cut episodes there; empty: the environment's own limit",
    ),
    Row(name="video", label="Video", type="bool", default=False, help="film episodes 0, 1, 8, 27, …"),
)
