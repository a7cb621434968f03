"""The curriculum in a run's arguments: its kind, its environments and the run's goal."""

from __future__ import annotations

from typing import Any, Protocol

from mosaic.contract.automatic import AutomaticCourse, read_automatic
from mosaic.contract.curriculum import Course, Stage, read_schedule
from mosaic.contract.errors import ConfigError


class CurriculumArgs(Protocol):
    """The arguments of a run that concern its curriculum."""

    env_id: str
    resume: Any
    curriculum_schedule: str
    curriculum: str


def stage_ids(args: CurriculumArgs) -> list[str]:
    """Return the environments of the run's curriculum, in the order of its stages or tasks; [] without one."""
    return [stage.env_id for stage in _stages(args)]


def settle(args: CurriculumArgs) -> None:
    """Set `env_id` to the last stage; a resumption on another environment drops the saved run's curriculum."""
    if args.curriculum_schedule and args.curriculum:
        raise SystemExit("--curriculum-schedule and --curriculum are both given; give one")
    env_ids = stage_ids(args)
    if env_ids and args.env_id not in env_ids:
        if not args.resume:
            raise SystemExit(f"--env-id {args.env_id!r} is no stage of the curriculum; name one of its environments")
        args.curriculum_schedule = args.curriculum = ""
    elif env_ids and args.curriculum_schedule:
        args.env_id = env_ids[-1]


def course_of(args: CurriculumArgs, choosers: Any) -> Course | AutomaticCourse:
    """Return the run's course; `choosers` makes an automatic curriculum's task chooser, None if unavailable."""
    if not args.curriculum:
        return Course(_stages(args))
    if choosers is None:
        raise SystemExit("--curriculum needs the worker: cleanrl-worker --config …, with extras.curriculum")
    plan = read_automatic(args.curriculum, "--curriculum")
    return AutomaticCourse(plan, choosers(plan))


def _stages(args: CurriculumArgs) -> tuple[Stage, ...]:
    try:
        if args.curriculum:
            return tuple(Stage(task, ()) for task in read_automatic(args.curriculum, "--curriculum").tasks)
        given = args.curriculum_schedule
        return read_schedule(given, "--curriculum-schedule") if given else ()
    except ConfigError as error:
        raise SystemExit(str(error)) from None
