"""The worker's command line: read a config, then train, play, dry-run, or list the algorithms."""

from __future__ import annotations

import signal
import sys

from mosaic.contract.stopping import STOP_SIGNALS, ending_at_once

TYPE_CHECKING = False  # importing typing takes 6 ms, in which Ctrl-C would still print a traceback

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cleanrl_worker.config.config import CleanRLWorkerConfig

PROGRAM = "cleanrl-worker"
EXIT_UNEXPECTED = 1
EXIT_REFUSED = 2
EXIT_REQUEUE = 75  # stopped before anything could be saved: restart the run
NO_RUN = {"-h", "--help", "--list", "--dry-run", "--interactive"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker and return its exit code: 0, the algorithm's own, 128 + signal, 2 refused, 1 unexpected.

    Its dependencies are imported only here, where a signal ends it like a run that has not started.
    """
    trains = NO_RUN.isdisjoint(sys.argv[1:] if argv is None else argv)
    with ending_at_once(*(EXIT_REQUEUE, *STOP_SIGNALS) if trains else (128 + signal.SIGINT, signal.SIGINT)):
        return _answer(argv)


def _answer(argv: Sequence[str] | None) -> int:
    import os
    import subprocess

    from cleanrl_worker.supervise.script_phase import note_refused
    from mosaic.contract.errors import ConfigError, MosaicError

    args = None
    try:
        args = _parser().parse_args(argv)
        return _run(args)
    except subprocess.CalledProcessError as error:
        return error.returncode if error.returncode > 0 else 128 - error.returncode
    except ConfigError as error:
        if args is None or not (args.dry_run or args.interactive or args.list):
            note_refused(error, *(getattr(args, name, None) for name in ("config", "algo", "env_id")))
        return _complain(error, EXIT_REFUSED)
    except MosaicError as error:
        return _complain(error, EXIT_UNEXPECTED)
    except BrokenPipeError:
        # The reader of our output (`| head`) has closed it; Python would report that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(args: argparse.Namespace) -> int:
    from mosaic.contract.errors import ConfigError

    if args.list:
        return _list(as_json=args.json)
    if args.json:
        raise ConfigError("--json goes with --list; a dry run prints JSON with --emit-summary")
    if args.interactive:
        from cleanrl_worker.supervise.handover import hand_over

        return hand_over(_config(args), dry_run=args.dry_run)
    if args.run_id or args.policy_path:
        raise ConfigError("--run-id and --policy-path go with --interactive; a config holds its own")
    if args.config is None:
        raise ConfigError("--config PATH is needed (a JSON file; or see --list, --help)")
    from cleanrl_worker.runtime import CleanRLWorkerRuntime

    runtime = CleanRLWorkerRuntime(
        _config(args), use_grpc=args.grpc, grpc_target=args.grpc_target, dry_run=args.dry_run
    )
    summary = runtime.run()
    if args.emit_summary:
        print(summary.to_json(), flush=True)
    elif args.dry_run:
        for warning in summary.warnings:
            print(f"{PROGRAM}: warning: {warning}", file=sys.stderr)
        print(f"{PROGRAM}: this would run {summary.module} {' '.join(summary.argv)}", file=sys.stderr)
        if summary.needs:
            print(f"{PROGRAM}: it needs {summary.needs}", file=sys.stderr)
    return 0


def _config(args: argparse.Namespace) -> CleanRLWorkerConfig:
    from cleanrl_worker.config.config import load_worker_config, parse_worker_config
    from mosaic.contract.fields import parse_object

    overrides = {
        "algo": args.algo,
        "env_id": args.env_id,
        "total_timesteps": args.total_timesteps,
        "seed": args.seed,
        "worker_id": args.worker_id,
        "extras": None if args.extras is None else parse_object(args.extras, "--extras"),
        "run_id": args.run_id,
    }
    if args.interactive:
        given = {"mode": "interactive"} | ({"policy_path": args.policy_path} if args.policy_path else {})
        overrides["extras"] = (overrides["extras"] or {}) | given
    if args.config is None:
        return parse_worker_config({"extras": {}}, overrides)
    return load_worker_config(args.config, overrides)


def _list(as_json: bool) -> int:
    import json

    from cleanrl_worker.schema.parameters import describe

    algorithms = describe()
    if as_json:
        print(json.dumps(algorithms, indent=2), flush=True)
        return 0
    for name, entry in algorithms.items():
        print(f"{name} ({', '.join(entry['action_spaces'])} actions): {entry['doc']}")
        for field in entry["fields"]:
            kind = "|".join(map(str, field["choices"])) or field["type"]
            default = "none" if field["default"] is None else json.dumps(field["default"])
            print(f"    {field['name']} ({kind}, default {default}): {field['help']}")
        print(flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    import argparse
    from typing import NoReturn

    from mosaic.contract.errors import ConfigError

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            """Raise a one-line ConfigError like any other, without the usage."""
            raise ConfigError(f"{message} (see --help)")

    about = "Train a CleanRL-style algorithm from a JSON config."
    parser = Parser(prog=PROGRAM, description=about, allow_abbrev=False)
    add = parser.add_argument
    add("--config", metavar="PATH", help="the config: flat JSON, or a trainer payload (metadata.worker.config)")
    add("--algo", help="registry name, module, or path of a script of your own (overrides the config)")
    add("--env-id", help="environment (overrides the config)")
    add("--total-timesteps", type=int, help="steps to train for (overrides the config)")
    add("--seed", type=int, help="seed (overrides the config)")
    add("--worker-id", help="name of this worker (overrides the config)")
    add("--extras", metavar="JSON", help="merged into the config's extras key by key, algo_params too")
    add("--grpc", action="store_true", help="tell a trainer daemon about this run")
    add("--grpc-target", metavar="HOST:PORT", default="127.0.0.1:50055", help="where the daemon listens (%(default)s)")
    add("--dry-run", action="store_true", help="check everything, run and write nothing")
    add("--emit-summary", action="store_true", help="print a JSON summary at the end")
    add("--interactive", action="store_true", help="step an environment over stdin and stdout")
    add("--run-id", help="run id of an interactive session")
    add("--policy-path", metavar="PATH", help="policy that acts in an interactive session")
    add("--list", action="store_true", help="list the algorithms and their parameters")
    add("--json", action="store_true", help="with --list: as JSON")
    return parser


def _complain(error: Exception, code: int) -> int:
    print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
