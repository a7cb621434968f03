"""Flags shared by all algorithms, and parsing of a command line into `Args`."""

import contextlib
import dataclasses
import importlib.util
import io
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from cleanrl_worker.envs import courses
from mosaic.contract import flags, recipes
from mosaic.contract.checkpoints import saved_args
from mosaic.contract.errors import ConfigError
from mosaic.contract.extras import told_by as told_by
from mosaic.contract.limits import Limits as Limits
from mosaic.contract.limits import check_batch as check_batch
from mosaic.contract.limits import check_minibatches as check_minibatches
from mosaic.contract.limits import require_within, settle_frames
from mosaic.contract.typed import refuse_untyped, typed_for

LARGEST_SEED = 2**63 - 1  # the limit of torch's generator
# Fields that accept any number are annotated int or float.
Count = Annotated[int, Limits(1)]
CountFrom2 = Annotated[int, Limits(2)]
CountFrom0 = Annotated[int, Limits(0)]
Amount = Annotated[float, Limits(0)]
Share = Annotated[float, Limits(0, 1)]
Pieces = Annotated[int, Limits(1, "num_envs * num_steps")]
Computed = Annotated[int, Limits(0, 0)]
Capacity = Annotated[int, Limits("num_envs")]
Stacks = Annotated[int, Limits("8 * num_envs")]  # transitions of stacked frames: pending ones need five frames each
Lowest = Annotated[float, Limits(-1e38)]  # of returns, in float32
Highest = Annotated[float, Limits(most=1e38, above="v_min")]


@dataclass(kw_only=True)
class RunArgs:
    """Settings of any run; an algorithm's `Args` adds its own fields and overrides defaults."""

    exp_name: str = ""
    """name of this experiment in file and run names (empty: the algorithm's name)"""
    seed: Annotated[int, Limits(0, LARGEST_SEED)] = 1
    """seed of every random generator of the run"""
    torch_deterministic: bool = True
    """make cuDNN choose deterministic kernels"""
    cuda: bool = True
    """train on the GPU if available"""
    track: bool = False
    """log metrics to Weights & Biases (offline without a key)"""
    wandb_project_name: str = "cleanRL"
    """W&B project"""
    wandb_entity: str | None = None
    """W&B team or user (None: the key's)"""
    wandb_run_name: str | None = None
    """W&B run name (None: <env>__<exp>__<seed>__<unix time>)"""
    capture_video: bool = False
    """record mp4 videos of the first environment's episodes 0, 1, 8, 27, … into videos/"""
    save_model: bool = False
    """save the policy, with all an evaluation needs, when training ends"""
    upload_model: bool = False
    """push the saved policy to the Hugging Face hub (needs --save-model)"""
    hf_entity: str = ""
    """user or organisation on the hub (empty: the token's owner)"""
    env_id: str = "CartPole-v1"
    """environment to learn"""
    total_timesteps: Count = 500000
    """total number of environment steps, over all environments"""
    num_envs: Count = 1
    """number of environments stepped in parallel"""
    env_backend: Literal["auto", "gymnasium", "envpool"] = "auto"
    """backend of the environments; auto chooses EnvPool where it matches Gymnasium and was measured faster"""
    vectorization: Literal["sync", "async", "native"] = "sync"
    """Gymnasium environments in one process, one process each, or the environment's own vector version"""
    curriculum_schedule: str = ""
    """stages to train through, as JSON: [{"env_id": …, "steps": …}, …]; env_id is one of them, the last is the goal"""
    curriculum: str = ""
    """tasks that Syllabus chooses among, as JSON: {"method": "plr" | "lp" | "domain_randomization", "tasks": […]}"""
    run_dir: Path | None = None
    """folder the run writes into (None: runs/<env>__<exp>__<seed>__<unix time>)"""
    tensorboard_dir: Path | None = None
    """folder for TensorBoard files (None: tensorboard/ in the run folder, when the file runs alone)"""
    checkpoint_every: CountFrom0 = 100000
    """steps between two checkpoints of the full training state (0: only at the end and on SIGTERM)"""
    checkpoint_episodes: CountFrom0 = 20
    """minimum mean number of episodes per environment between two checkpoints: a checkpoint cuts running episodes"""
    checkpoint_budget_mb: CountFrom0 = 10000
    """disk space for checkpoints, in megabytes (0: no limit)"""
    resume: Path | None = None
    """continue from a checkpoint, a run folder (its newest checkpoint) or, as a warm start, a policy file"""
    additional_timesteps: CountFrom0 = 0
    """with --resume: train this many more steps, instead of up to total_timesteps"""
    grace_seconds: Amount = 120.0
    """time to reach the next checkpoint after SIGTERM; if it would take longer, the state is saved at once"""
    nonfinite: Literal["stop", "warn"] = "stop"
    """reaction to the first NaN or infinity in observations, rewards, losses or weights: end the run, or warn once"""
    num_threads: CountFrom0 = 1
    """CPU threads for the networks (0: torch's default); small networks are fastest with 1"""

    @property
    def algo_name(self) -> str:
        """Return the registry name: the file that defines the `Args`, even if it runs as `__main__`."""
        module = sys.modules[type(self).__module__]
        return Path(module.__file__ or type(self).__module__).stem


ArgsT = TypeVar("ArgsT", bound=RunArgs)


def parse(args_type: type[ArgsT], argv: list[str] | None = None) -> ArgsT:
    """Parse the command line; switches may be written --x, --no-x, --x=true or --x=false."""
    given = sys.argv[1:] if argv is None else argv
    words = flags.in_one_dialect(given, typing.get_type_hints(args_type))
    module = sys.modules[args_type.__module__]
    default, told = _saved_defaults(args_type, given), io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(
                args_type,
                args=words,
                default=default,
                prog=f"python -m {module.__spec__.name}" if module.__spec__ else None,
                description=module.__doc__,
                config=(tyro.conf.AvoidSubcommands,),
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise SystemExit(flags.first_paragraph(told.getvalue())) from None


def require(args: RunArgs) -> None:
    """Refuse values that would fail later or silently learn nothing."""
    settle_frames(args)
    _drop_computed(args)
    require_within(args)
    courses.settle(args)
    if args.upload_model and not args.save_model:
        raise SystemExit("--upload-model needs --save-model: there would be no policy to push")
    if args.upload_model and importlib.util.find_spec("huggingface_hub") is None:
        raise SystemExit("--upload-model needs huggingface_hub: pip install 'mosaic-rl[hub]'")


def _drop_computed(args: RunArgs) -> None:
    """Reset computed settings with a warning; CleanRL's files overwrite them silently."""
    for name in sorted(recipes.computed(type(args))):
        if value := getattr(args, name):
            option = flags.option(name)
            line = f"warning: {option} {value} has no effect: the run computes it from other flags (see --help)"
            print(line, file=sys.stderr, flush=True)
            setattr(args, name, 0)


def about(args: RunArgs) -> dict[str, typing.Any]:
    """Return the run's description that policies and checkpoints record."""
    known = {"algo": args.algo_name, "env_id": args.env_id, "seed": args.seed}
    return {**known, "args": as_json(args)}


def as_json(args: RunArgs) -> dict[str, typing.Any]:
    """Return the values as plain JSON types."""
    return {
        field.name: str(value) if isinstance(value := getattr(args, field.name), Path) else value
        for field in dataclasses.fields(args)
    }


def _saved_defaults(args_type: type[ArgsT], given: list[str]) -> ArgsT:
    """Return the defaults; with --resume, those of the checkpoint's or the policy's run."""
    told = flags.given(given)
    if not (source := told.get("resume")):
        return args_type()
    try:
        saved = recipes.inherited(args_type, saved_args(Path(source)))
        refuse_untyped(source, saved, told, typed_for(Path(source)), alone=True)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    return args_type(**saved)
