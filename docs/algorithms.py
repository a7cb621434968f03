"""Writes what docs/algorithms.md takes from the algorithm files: what each is, paper, environments, flags, curves.

    python docs/algorithms.py

Only what stands between the marks `<!-- from the files: … -->` and `<!-- end -->` is written anew; the rest of the page
is written by hand. No algorithm is imported: their sources are read.
"""

import ast
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cleanrl_worker.run.args import RunArgs
from cleanrl_worker.schema.parameters import describe
from mosaic import catalog

HERE = Path(__file__).resolve().parent
PAGE = HERE / "algorithms.md"
COMMAND = "python docs/algorithms.py"
# Papers that are on no arXiv, as the files name them.
ELSEWHERE = {
    "Mnih et al. 2015": "https://doi.org/10.1038/nature14236",
}
OBSERVATIONS = {
    "vector": "rows of numbers",
    "discrete": "numbered states",
    "tuple": "tuples",
    "dict": "named parts",
    "grid": "grids",
    "image": "images",
}

Entry = Mapping[str, Any]


def main() -> None:
    """Write the page."""
    before = PAGE.read_text()
    after = written(before)
    PAGE.write_text(after)
    print(f"{PAGE}: {'as it was' if after == before else 'written'}")


def written(page: str) -> str:
    """The page with each marked part as the files have it now."""
    entries = describe()
    parts = {"list": listed(entries), "shared flags": shared_flags(entries), "each": each(entries)}
    for name, text in parts.items():
        mark = f"<!-- from the files: {name} -->"
        pattern = re.compile(f"{re.escape(mark)}\n.*?<!-- end -->", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise SystemExit(f"{PAGE} needs exactly one part from {mark} to <!-- end -->")
        page = pattern.sub(lambda _, whole=f"{mark}\n\n{text}\n\n<!-- end -->": whole, page)
    return page


def listed(entries: Mapping[str, Entry]) -> str:
    """All algorithms, a row each."""
    rows = [
        (f"[`{name}`](#{name})", about(entry), ", ".join(papers(entry)), f"[{name}.py]({file_of(entry)})")
        for name, entry in entries.items()
    ]
    return table(("name", "what it is", "paper", "file"), rows)


def shared_flags(entries: Mapping[str, Entry]) -> str:
    """The flags that every algorithm has."""
    return table(("flag", "default", "meaning"), [row(field) for field in run_fields(entries).values()])


def each(entries: Mapping[str, Entry]) -> str:
    """A section for every algorithm."""
    return "\n\n".join("\n\n".join(section(name, entries)) for name in entries)


def section(name: str, entries: Mapping[str, Entry]) -> Iterator[str]:
    """What one file says of itself, its own flags, and how it learned."""
    entry, shared = entries[name], run_fields(entries)
    siblings = [f"[`{other}`](#{other})" for other in siblings_of(entry) if other in entries]
    yield f"### {name}"
    beside = f" Read beside it: {', '.join(siblings)}." if siblings else ""
    yield f"{about(entry)} Paper: {', '.join(papers(entry)) or 'none'}. File: [{name}.py]({file_of(entry)}).{beside}"
    yield environments(entry)
    own = [field for field in entry["fields"] if field["name"] not in shared]
    other = [
        field
        for field in entry["fields"]
        if field["name"] in shared.keys() - {"env_id"} and field["default"] != shared[field["name"]]["default"]
    ]
    if other:
        defaults = [f"`{option(field)}` {shown(field['default'])}" for field in other]
        yield f"Other defaults of [flags that all have](#flags-that-all-have): {', '.join(defaults)}. Its own flags:"
    yield table(("flag", "default", "meaning"), [row(field) for field in own])
    curves = sorted((HERE / "img").glob(f"learning-{name}-*.svg"))
    if curves:
        titles = [curve.stem.removeprefix("learning-").replace("-", " on ", 1) for curve in curves]
        yield "\n".join(f"![{title}](img/{curve.name})" for title, curve in zip(titles, curves, strict=True))


def about(entry: Entry) -> str:
    """The first sentence of the file, without its paper."""
    sentence = docstring(entry).partition("Siblings:")[0].partition("\n\n")[0]
    return " ".join(re.sub(r"\s*\([^()]*\)", "", sentence).split()).rstrip(".") + "."


def siblings_of(entry: Entry) -> list[str]:
    """The algorithms that the file names beside itself."""
    return re.findall(r"\w+", docstring(entry).partition("Siblings:")[2].partition(".")[0])


def papers(entry: Entry) -> list[str]:
    """Links to what the file's docstring names."""
    text = docstring(entry)
    found = {number: f"[{number}](https://arxiv.org/abs/{number})" for number in re.findall(r"arXiv:(\d+\.\d+)", text)}
    found |= {name: f"[{name}]({link})" for name, link in ELSEWHERE.items() if name in text}
    return sorted(found.values(), key=lambda link: text.index(link[1 : link.index("]")]))


def environments(entry: Entry) -> str:
    """What it learns from and acts in, and how many ids of each part of the catalog that is."""
    fits: dict[str, int] = {}
    for env_id in catalog.ids():
        one = catalog.find(env_id)
        assert one is not None
        if (
            one.action_space in (None, *entry["action_spaces"])
            and one.observation_space in (entry["observation_spaces"] or [one.observation_space])
            and one.is_of(entry["families"] or [one.family])
        ):
            label = catalog.group_of(one).label
            fits[label] = fits.get(label, 0) + 1
    acts = " or ".join(kind.replace("_", "-") for kind in entry["action_spaces"]) or "any"
    sees = ", ".join(OBSERVATIONS.get(kind, kind) for kind in entry["observation_spaces"]) or "anything"
    where = ", ".join(f"{label} ({count})" for label, count in fits.items())
    default = next(field["default"] for field in entry["fields"] if field["name"] == "env_id")
    yours = "" if entry["families"] else ", and yours"
    told = f"It acts in {acts} actions and sees {sees}: {where} of the [catalog](environments.md){yours}."
    return f"{told} Without `--env-id` it learns `{default}`."


def row(field: Mapping[str, Any]) -> tuple[str, str, str]:
    """A flag as a row of a table."""
    meaning = field["help"]
    if field["choices"]:
        meaning += f" ({', '.join(f'`{choice}`' for choice in field['choices'])})"
    return f"`{option(field)}`", shown(field["default"]), meaning


def option(field: Mapping[str, Any]) -> str:
    return "--" + str(field["name"]).replace("_", "-")


def shown(default: Any) -> str:
    if default in (None, ""):
        return "–"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown's."""
    lines = [header, ("---",) * len(header), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def docstring(entry: Entry) -> str:
    return ast.get_docstring(ast.parse((HERE / file_of(entry)).read_text())) or ""


def file_of(entry: Entry) -> str:
    return f"../src/{entry['module'].replace('.', '/')}.py"


def run_fields(entries: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    """The flags that every `Args` inherits, with the defaults that they have there."""
    defaults = {field.name: field.default for field in dataclasses.fields(RunArgs)}
    one = next(iter(entries.values()))
    return {f["name"]: {**f, "default": defaults[f["name"]]} for f in one["fields"] if f["name"] in defaults}


if __name__ == "__main__":
    main()
