"""The flags every algorithm shares, and how a command line becomes an `Args`."""

import dataclasses
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import tyro


@dataclass(kw_only=True)
class RunArgs:
    """What any run needs, whatever it learns; an algorithm's `Args` adds its own fields and overrides defaults."""

    exp_name: str = ""
    """name of this experiment in file and run names (empty: the algorithm's name)"""
    seed: int = 1
    """seed of every random generator of the run"""
    torch_deterministic: bool = True
    """make cuDNN choose deterministic kernels"""
    cuda: bool = True
    """train on the GPU when there is one"""
    track: bool = False
    """send metrics to Weights & Biases (offline when there is no key)"""
    wandb_project_name: str = "cleanRL"
    """W&B project"""
    wandb_entity: str | None = None
    """W&B team or user (default: that of the key)"""
    wandb_run_name: str | None = None
    """W&B run name (default: <env>__<exp>__<seed>__<unix time>)"""
    capture_video: bool = False
    """record mp4 videos of the first environment's episodes 0, 1, 8, 27, … into videos/"""
    save_model: bool = False
    """save the policy and all an evaluation needs when training ends"""
    upload_model: bool = False
    """push the saved policy to the Hugging Face hub (needs --save-model)"""
    hf_entity: str = ""
    """user or organisation on the hub (empty: whose token it is)"""
    env_id: str = "CartPole-v1"
    """environment to learn"""
    total_timesteps: int = 500000
    """environment steps to train for, over all environments"""
    num_envs: int = 1
    """environments stepped side by side"""
    env_backend: Literal["auto", "gymnasium", "envpool"] = "auto"
    """who runs the environments; auto takes EnvPool where it matches Gymnasium and was measured faster"""
    vectorization: Literal["sync", "async", "native"] = "sync"
    """Gymnasium environments in one process, one process each, or the environment's own vector version"""
    run_dir: Path | None = None
    """folder the run writes into (default: runs/<env>__<exp>__<seed>__<unix time>)"""
    tensorboard_dir: Path | None = None
    """folder for TensorBoard files (default: tensorboard/ in the run folder when the file runs alone)"""
    num_threads: int = 1
    """CPU threads for the networks (0: torch's default); small networks are fastest with 1"""


ArgsT = TypeVar("ArgsT", bound=RunArgs)


def parse(args_type: type[ArgsT], argv: list[str] | None = None) -> ArgsT:
    """Read the command line; switches may be written --x, --no-x, --x=true or --x=false."""
    given = sys.argv[1:] if argv is None else argv
    switches = _switch_names(args_type)
    return tyro.cli(
        args_type,
        args=[_one_dialect(flag, switches) for flag in given],
        description=sys.modules[args_type.__module__].__doc__,
        config=(tyro.conf.AvoidSubcommands,),
    )


def algo_name(args: RunArgs) -> str:
    """The registry name: the file that defines the `Args`, also when it runs as `__main__`."""
    module = sys.modules[type(args).__module__]
    return Path(module.__file__ or type(args).__module__).stem


def as_json(args: RunArgs) -> dict[str, typing.Any]:
    """The values as plain JSON types."""
    return {
        field.name: str(value) if isinstance(value := getattr(args, field.name), Path) else value
        for field in dataclasses.fields(args)
    }


def _switch_names(args_type: type[RunArgs]) -> frozenset[str]:
    hints = typing.get_type_hints(args_type)
    return frozenset(field.name for field in dataclasses.fields(args_type) if hints[field.name] is bool)


def _one_dialect(flag: str, switches: frozenset[str]) -> str:
    """`--x=true` and `--x=false` as tyro's `--x` and `--no-x`; everything else as it came."""
    name, equals, value = flag.removeprefix("--").partition("=")
    if not flag.startswith("--") or not equals or name.replace("-", "_") not in switches:
        return flag
    if value.lower() not in ("true", "false"):
        raise SystemExit(f"--{name} takes true or false, not {value!r}")
    return f"--{name}" if value.lower() == "true" else f"--no-{name}"
