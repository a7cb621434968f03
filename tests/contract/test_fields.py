"""The tables of what enters: every field has a kind, and documents are read within their caps."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract import fields
from mosaic.contract.fields import CONFIG, EXTRAS, SUBMISSION, check_extras, parse_object, read_object
from mosaic.contract.files import CHECKPOINT, SCORE, SIDECAR
from mosaic.contract.kinds import FieldError, Kind, Table


def refusal(data: Any, **more: Any) -> str:
    with pytest.raises(FieldError) as refused:
        parse_object(data, "config x.json", **more)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    return str(refused.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[" * 10_000, "nested deeper than 64 levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested deeper than 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper than 64 levels"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": 1e999}', "a finite number is needed, not inf"),
        (b'{"a": 9223372036854775808}', "a: a number from -9223372036854775808 to 9223372036854775807"),
        (b'{"a": "\\u0000"}', "a text has a NUL"),
        (b'{"a": {"b\\u0000": 1}}', "a name without NUL is needed"),
        (b'{"a": "\\ud800"}', "half a surrogate pair"),
        (b"\xff\xfe", "no valid JSON"),
        (b"[1]", "a JSON object is needed, not [1]"),
        (b"9" * 5000, "no valid JSON"),
        (b"{", "no valid JSON"),
        (json.dumps({f"k{n}": 0 for n in range(1_000_000)}), "at most 1,048,576 are accepted"),
        ('{"a": [' + "0," * 300_000 + "0]}", "more than 200,000 values"),
    ],
)
def test_a_text_that_is_not_a_bounded_json_object_is_refused_in_one_line(data: Any, words: str) -> None:
    assert words in refusal(data)


def test_generators_may_hold_wide_integers_in_documents_that_allow_them() -> None:
    assert parse_object(json.dumps({"state": 1 << 127}), "state.json", wide=True) == {"state": 1 << 127}
    assert "nested deeper" in refusal('{"a":' * 65 + "1" + "}" * 65, wide=True)


def test_only_a_plain_file_within_its_cap_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * 2_000_000)
    (tmp_path / "good").write_text('{"a": 1}')
    assert read_object(tmp_path / "good", "config") == {"a": 1}
    cases = [(tmp_path / "pipe", "a plain file is needed"), (Path("/dev/zero"), "a plain file is needed")]
    cases += [(tmp_path, "a plain file is needed"), (tmp_path / "none", "cannot be read: No such file")]
    cases += [(tmp_path / "large", "2,000,000 bytes; at most 1,048,576"), (Path("a\0b"), "cannot be read")]
    for path, words in cases:
        with pytest.raises(FieldError, match=words):
            read_object(path, "config")


def test_a_sparse_file_of_a_terabyte_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    code = (
        "import sys\nfrom mosaic.contract import fields\n"
        "try:\n    fields.read_object(sys.argv[1], 'state.json', fields.STATE_BYTES)\n"
        "except fields.FieldError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
    )
    assert "1,099,511,627,776 bytes; at most" in done.stdout, done.stderr


def all_kinds(table: Table, place: str = "") -> list[tuple[str, Kind]]:
    found = []
    for name, kind in table.fields.items():
        where = f"{place}.{name}".lstrip(".")
        found += all_kinds(kind, where) if isinstance(kind, Table) else [(where, kind)]
    return found


@pytest.mark.parametrize("table", [SUBMISSION, CONFIG, CHECKPOINT, SIDECAR, fields.CARD])
def test_every_known_field_refuses_a_value_of_another_type_and_names_itself(table: Table) -> None:
    for place, kind in all_kinds(table):
        if kind is fields.ANYTHING:
            continue
        for value in (object(), 1 + 2j) if kind in (fields.READING, SCORE) else (object(), 1 + 2j, float("nan")):
            with pytest.raises(FieldError, match=place.rpartition(".")[2]):
                kind.check(value, place)


def test_every_extra_of_the_workers_own_is_typed() -> None:
    for name, kind in EXTRAS.items():
        if kind is not fields.ANYTHING:
            with pytest.raises(FieldError, match=rf"^extras\.{name}: "):
                check_extras({name: object()})
        check_extras({name: None})
        check_extras({name: ""})


def test_a_wrong_choice_is_answered_with_the_nearest() -> None:
    with pytest.raises(FieldError, match=r"'trian' is none of train, .*; did you mean 'train'"):
        check_extras({"mode": "trian"})


def test_values_of_variables_are_not_quoted() -> None:
    payload = {"environment": {"WANDB_API_KEY": ["very-secret"]}, "metadata": {"worker": {"config": {}}}}
    with pytest.raises(FieldError) as refused:
        SUBMISSION.check(payload)
    assert "very-secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "a\\b", "a\0", "x" * 300])
def test_a_checkpoint_names_plain_files_only(name: str) -> None:
    good = {"format": 1, "step": 1, "files": {}}
    CHECKPOINT.check({**good, "files": {"state.safetensors": "0" * 64}})
    with pytest.raises(FieldError, match=r"the name of a file without|without NUL|has a NUL"):
        CHECKPOINT.check({**good, "files": {name: "0" * 64}})
    with pytest.raises(FieldError, match=r"the name of a file without|without NUL|has a NUL"):
        CHECKPOINT.check({**good, "replay": {"segments": [{"file": name, "first": 0, "end": 1, "sha256": "0" * 64}]}})


@pytest.mark.parametrize("given", ["pipe", "/dev/zero", "keys", "deep"])
def test_the_worker_refuses_a_hostile_config_in_one_line_and_at_once(tmp_path: Path, given: str) -> None:
    path = Path(given) if given.startswith("/") else tmp_path / given
    if given == "pipe":
        os.mkfifo(path)
    elif given == "keys":
        path.write_text(json.dumps({f"k{n}": 0 for n in range(1_000_000)}))
    elif given == "deep":
        path.write_text('{"extras":' * 900 + "{}" + "}" * 900)
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(path), "--algo", "ppo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
