"""What lies beside policies: read strictly, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.sidecars import read_sidecar, sidecar_of


def test_a_sidecar_lies_beside_its_policy_and_may_be_absent(tmp_path: Path) -> None:
    policy = tmp_path / "ppo.cleanrl_model"
    assert read_sidecar(policy) == {}
    sidecar_of(policy).write_text('{"algo": "ppo", "args": {"gamma": 0.9}}')
    assert sidecar_of(policy).name == "ppo.cleanrl_model.json"
    assert read_sidecar(policy)["args"] == {"gamma": 0.9}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1]", "a JSON object is needed"),
        ("{", "no valid JSON"),
        ("[" * 10_000, "nested deeper than 64 levels"),
        ('{"args": [1]}', "args: a JSON object is needed, not [1]"),
        ('{"format": 99}', "format 99 is newer than this version reads (1)"),
    ],
)
def test_what_is_no_sidecar_is_refused_in_one_line(text: str, line: str, tmp_path: Path) -> None:
    sidecar_of(tmp_path / "p").write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_sidecar(tmp_path / "p")
    assert line in str(refused.value) and "\n" not in str(refused.value)
