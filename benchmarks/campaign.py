"""The campaign: trains the rows of queue.json in slices and writes docs/results.md with a bundle for each.

    python benchmarks/campaign.py status
    python benchmarks/campaign.py next --minutes 30 --gpu
    python benchmarks/campaign.py next --minutes 10 --row ppo__CartPole-v1
    python benchmarks/campaign.py measure ppo__CartPole-v1 --processes 2 --seconds 30
    python benchmarks/campaign.py report
    python benchmarks/campaign.py check
    python benchmarks/campaign.py pack state.tgz        # on the machine that trained
    python benchmarks/campaign.py unpack state.tgz      # on the next one, or at home

It needs this checkout and what the algorithms import; neither an installation of MOSAIC nor its daemon.
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]  # also where nothing is installed

from report import RESULTS, markdown  # noqa: E402
from rows import campaign, carry, queued, sources  # noqa: E402
from rows.queued import Row  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(argv)
    if args.command == "next" and not args.minutes > 0:  # NaN included
        raise SystemExit(f"--minutes {args.minutes:g}: more than 0 are needed")
    if args.command == "measure" and args.processes < 1:
        raise SystemExit(f"--processes {args.processes}: 1 or more are needed")
    commit = args.commit or sources.commit_of_checkout()
    work = args.work or Path(os.environ.get("MOSAIC_HOME") or HERE.parent) / "var" / "benchmarks" / "campaign"
    files = (args.queue, work, args.results, args.page)
    places = campaign.Places(*(path.absolute() for path in files), commit)
    code = 0
    if args.command == "status":
        rows = queued.load(places.queue)
        print(markdown([shown(row) for row in rows]) if rows else f"queue {places.queue}: no rows; add one to train")
    elif args.command == "next":
        device = "gpu" if args.gpu else "cpu"
        code = campaign.train(places, 60 * args.minutes, device=device, key=args.row, carry_mb=args.carry_mb)
    elif args.command == "measure":
        row = campaign.measure(places, args.row, args.processes, args.seconds)
        print(f"{row.key}: {row.measured} steps/s by processes; {row.side_by_side} at a time from now on")
    elif args.command == "report":
        print(campaign.report(places))
    elif args.command == "check":
        code = 1 if campaign.check(places, args.rows) else 0
    elif args.command == "pack":
        print("\n".join(carry.pack(places, args.file.absolute(), args.carry_mb, args.part_mb)))
    else:
        print("\n".join(carry.unpack(places, args.file.absolute())))
        campaign.report(places)
    return code


def shown(row: Row) -> dict[str, object]:
    """Return one line of the table."""
    steps = ", ".join(f"{seed}: {step:,}" for seed, step in row.checkpoints.items())
    return {
        "row": row.key,
        "steps": f"{row.steps:,}",
        "seeds": ",".join(map(str, row.seeds)),
        "priority": row.priority,
        "on": row.device,
        "state": row.state,
        "at a time": row.side_by_side,
        "at step, by seed": steps or "–",
        "commit": row.commit[:9] or "–",
        "why": row.why or "–",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queue", type=Path, default=HERE / "queue.json", help="the rows (%(default)s)")
    parser.add_argument("--work", type=Path, help="folder of runs and logs (var/benchmarks/campaign in the checkout)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the bundles")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "results.md", help="the generated page")
    parser.add_argument("--commit", default="", help="the commit of the sources, for a copy that is not a git checkout")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status", help="print the queue")
    one = commands.add_parser("next", help="train what fits into the time")
    one.add_argument("--minutes", type=float, required=True, help="time until the last slice ends")
    one.add_argument("--gpu", action="store_true", help="rows for a GPU instead of those for a CPU")
    one.add_argument("--row", default="", metavar="NAME", help="this row only, whatever its device")
    _add_carry(one, "end off-policy runs with a larger replay memory with their slice: it will not be carried")
    one = commands.add_parser("measure", help="steps per second of seeds one after the other and side by side")
    one.add_argument("row", metavar="NAME")
    one.add_argument("--processes", type=int, default=3, help="seeds side by side (%(default)s)")
    one.add_argument("--seconds", type=float, default=60.0, help="length of each of the two (%(default)s)")
    commands.add_parser("report", help="write the page from the bundles")
    one = commands.add_parser("check", help="queue measured rows again whose pinned update changed; exit code 1 if any")
    one.add_argument("rows", nargs="*", metavar="NAME")
    for name, text in (("pack", "write what another machine needs to continue"), ("unpack", "take in such a file")):
        one = commands.add_parser(name, help=text)
        one.add_argument("file", type=Path)
        if name == "pack":
            _add_carry(one, "leave larger replay memories out")
            one.add_argument("--part-mb", type=float, metavar="MB", help="cut the file into parts of this size")
    return parser


def _add_carry(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--carry-mb", type=float, metavar="MB", help=text)


if __name__ == "__main__":
    sys.exit(main())
