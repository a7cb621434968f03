"""What the documentation says exists: links, commands, flags, extras, variables, events, targets, JSON."""

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanrl_worker import cli as worker_cli
from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.schema import parameters as schema
from mosaic import catalog, cli, stats
from mosaic.contract import events, happenings, metrics, variables
from mosaic.contract.fields import EXTRAS
from mosaic.trainer.states import MOVES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
# Flags of other programs that the pages name.
FOREIGN_FLAGS = set("--full --logdir --shm-size --exclude --version --user --now --force-reinstall --upgrade".split())
FOREIGN_FLAGS |= {"--standalone", "--nnodes", "--nproc"}  # torchrun's, the last up to its underscores
SHELL = {"|", ">", "&&", ";"}
OURS = r"\b(?:MOSAIC|CLEANRL|GYM_GUI|TRACK)_[A-Z_]+\b"

each_page = pytest.mark.parametrize("page", PAGES, ids=IDS)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The arguments of each call of a program in the page's shell blocks."""
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            words = words[: next((place for place, word in enumerate(words) if word in SHELL), None)]
            if words[: len(program.split())] == program.split():
                yield words[len(program.split()) :]


def flags_of_benchmarks() -> set[str]:
    sources = [file.read_text() for file in (ROOT / "benchmarks").glob("*.py")]
    return {flag for text in sources for flag in re.findall(r'"(--[a-z][a-z0-9-]*)"', text)}


def flags_of_mosaic() -> set[str]:
    commands = next(action for action in cli.parser()._actions if isinstance(action.choices, dict))
    parsers = [cli.parser(), *commands.choices.values()]
    return {option for parser in parsers for action in parser._actions for option in action.option_strings}


def flags_of_algorithms() -> set[str]:
    names = {field["name"].replace("_", "-") for entry in schema.describe().values() for field in entry["fields"]}
    return {f"--{name}" for name in names} | {f"--no-{name}" for name in names} | {"--help"}


@each_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    broken = [
        target
        for target in targets
        if not target.startswith(("https://", "http://", "#")) and not (page.parent / target.partition("#")[0]).exists()
    ]
    assert not broken


@each_page
def test_named_flags_exist(page: Path) -> None:
    code = re.findall(r"`([^`\n]+)`", page.read_text()) + blocks(page, "sh")
    named = {flag for text in code for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![a-z-]*…)", text)}
    known = flags_of_algorithms() | flags_of_benchmarks() | FOREIGN_FLAGS
    known |= {option for action in worker_cli._parser()._actions for option in action.option_strings}
    known |= flags_of_mosaic()
    assert named - known - {"--x", "--no-x"} == set()


@each_page
def test_named_variables_extras_and_packages_exist(page: Path) -> None:
    text = page.read_text()
    prefixes = {"GYM_GUI_FASTLANE_", "DEFAULT_ALGO_REGISTRY"}
    assert set(re.findall(OURS, text)) - set(variables.DOCS) - prefixes == set()
    parameters = {field["name"] for entry in schema.describe().values() for field in entry["fields"]}
    assert set(re.findall(r"extras\.([a-z_]+)", text)) - set(EXTRAS) - parameters - {"total_frames"} == set()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"(?:mosaic-rl|'\.)\[([a-z_]+)\]", text)) - set(extras) == set()


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]+)", page.read_text(), re.MULTILINE))
    assert named - targets == set()


@each_page
def test_commands_parse(page: Path) -> None:
    for words in commands(page, "mosaic"):
        cli.parser().parse_args(words)
    for program in ("cleanrl-worker", "python -m cleanrl_worker.cli"):
        for words in commands(page, program):
            worker_cli._parser().parse_args(words)


@each_page
def test_json_is_json_and_configs_are_accepted(page: Path) -> None:
    for block in blocks(page, "json"):
        try:
            documents = [json.loads(block)]
        except json.JSONDecodeError:
            documents = [json.loads(line) for line in block.splitlines()]
        for document in documents:
            if "algo" in document or "metadata" in document:
                parse_worker_config(document)
            elif "event" in document:
                events.decode(json.dumps(document))
            elif "step" in document:
                metrics.decode_row(json.dumps(document))


def table(page: str, heading: str) -> list[str]:
    """The names in backticks in the first column of the table under a header row."""
    text = (ROOT / "docs" / page).read_text()
    rows = text[text.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_worker_page_lists_every_extra_that_the_worker_reserves() -> None:
    named = set(table("worker.md", "extra"))
    assert named <= set(EXTRAS)
    text = (ROOT / "docs/worker.md").read_text()
    assert [name for name in EXTRAS if f"`{name}`" not in text] == []


def test_worker_page_lists_the_variables_that_the_code_uses_in_its_words() -> None:
    sources = [file.read_text() for file in (ROOT / "src").rglob("*.py") if file.name != "variables.py"]
    used = {name for text in sources for name in re.findall(r"variables\.([A-Z][A-Z0-9_]+)", text)}
    assert sorted(table("worker.md", "variable")) == sorted(used & set(variables.DOCS))
    text = (ROOT / "docs/worker.md").read_text()
    assert [name for name in used & set(variables.DOCS) if f"| `{name}` | {variables.DOCS[name]} |" not in text] == []


def test_worker_page_lists_every_flag_of_the_worker() -> None:
    options = {option for action in worker_cli._parser()._actions for option in action.option_strings}
    text = (ROOT / "docs/worker.md").read_text()
    assert [option for option in options - {"-h", "--help"} if f"`{option}" not in text] == []


def test_events_page_names_every_event() -> None:
    text = (ROOT / "docs/events.md").read_text()
    assert [kind for kind in events.EVENT_KINDS if f"`{kind}`" not in text] == []


def test_algorithms_page_lists_the_registry() -> None:
    assert sorted(table("algorithms.md", "name")) == sorted(DEFAULT_ALGO_REGISTRY)


@pytest.mark.parametrize("name", DEFAULT_ALGO_REGISTRY)
def test_every_algorithm_shows_how_it_learns(name: str) -> None:
    assert list((ROOT / "docs/img").glob(f"learning-{name}-*.svg"))


def test_benchmarks_page_claims_what_the_kept_scores_decide() -> None:
    kept = json.loads((ROOT / "benchmarks/results/learning.json").read_text())
    page = (ROOT / "docs/benchmarks.md").read_text()
    rows = [
        line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| `\w+( --network shared)?` ", line)
    ]
    claims = {}
    for cells in (cells for cells in rows if len(cells) == 8 and cells[2].isdecimal()):
        name = cells[0].replace(" --network shared", "").replace("`", "").split(" (")[0].split(",")[0]
        claims[f"{name} shared" if "--network shared" in cells[0] else name] = cells[-1]
    found = {key: kept[key] for key in claims if kept.get(key, {}).get("published")}
    assert len(found) > 20
    for key, row in found.items():
        published = row["published"]
        word = stats.verdict(list(row["scores"].values()), published["mean"], published["std"])
        assert re.match(rf"{word}\b", claims[key]), (key, word, claims[key])


def test_what_is_to_be_measured_again_is_queued_with_the_reason() -> None:
    queue = json.loads((ROOT / "benchmarks/queue.json").read_text())["rows"]
    queued = {f"`{row['algo']}` {row['env_id']}": row for row in queue}
    marked = [line for line in (ROOT / "docs/benchmarks.md").read_text().splitlines() if "measured again (" in line]
    found = [row for name, row in queued.items() if any(line.startswith(f"| {name}") for line in marked)]
    assert len(marked) == len(found) == 5 and all(row.get("why") or row["state"] == "done" for row in found)
    assert {row["algo"] for row in queue} <= set(DEFAULT_ALGO_REGISTRY)


def test_algorithms_page_says_what_the_files_say_now() -> None:
    spec = importlib.util.spec_from_file_location("docs_algorithms", ROOT / "docs/algorithms.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = generator.PAGE.read_text()
    stale = [line for line in generator.written(page).splitlines() if line not in page.splitlines()]
    assert generator.written(page) == page, f"the page is old: run `{generator.COMMAND}`; new lines: {stale[:5]}"


def test_environments_page_counts_the_catalog() -> None:
    text = (ROOT / "docs" / "environments.md").read_text()
    assert f"`mosaic.catalog` knows {len(catalog.ids())} environment ids" in text
    told = {name: int(count) for name, count in re.findall(r"^\| (?:· )?`([\w-]+)` \| (\d+) \|", text, re.MULTILINE)}
    families = catalog.FAMILIES.values()
    groups = {group.name: len(catalog.ids(family.name, group.name)) for family in families for group in family.groups}
    assert told == {family.name: len(catalog.ids(family.name)) for family in families} | groups


def test_every_algorithm_names_its_paper() -> None:
    text = (ROOT / "docs/algorithms.md").read_text()
    assert "Paper: none" not in text, "name it in the file's first sentence: (arXiv:…), or in docs/algorithms.py"


def test_trainer_page_lists_what_the_log_says_in_its_words() -> None:
    page = (ROOT / "docs" / "trainer.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z_]+(?:\.[a-z_]+)+)` \| (.+) \|$", page, re.MULTILINE))
    assert listed == happenings.NAMES


def test_trainer_page_tells_every_state() -> None:
    page = (ROOT / "docs" / "trainer.md").read_text()
    assert all(re.search(rf"^\|.*\b{state}\b", page, re.MULTILINE) for state in MOVES)


def test_backup_runbook_leaves_out_every_secret_of_a_home() -> None:
    page = (ROOT / "docs/runbooks/backup.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("rsync ")]
    for secret in ("token", "web.key", "web", "ray_token"):
        assert f"--exclude '/trainer/{secret}'" in line


def test_architecture_names_a_place_that_exists_for_each_thing() -> None:
    places = re.findall(r"\| `(src/[^`]+)` \|", (ROOT / "docs" / "architecture.md").read_text())
    assert len(places) >= 20 and [place for place in places if not (ROOT / place).is_file()] == []
