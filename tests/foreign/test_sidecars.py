"""The sidecar beside a script's policy: what of its arguments is written."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cleanrl_worker.foreign import notes, sidecars
from mosaic.contract import secrets


def test_arguments_are_kept_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: list[object] = []
    loop.append(loop)
    args = SimpleNamespace(
        learning_rate=0.1,
        num_tokens=8,
        layers=[64, 64],
        device=object(),
        bound=float("inf"),
        huge=10**5000,
        loop=[loop],
        hf_token="abc",  # a secret only in this test
        wandb_api_key="",
        server="https://me:pw@host/x",
    )
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(args=args))
    kept = {"learning_rate": 0.1, "num_tokens": 8, "layers": [64, 64], "server": "https://***@host/x"}
    assert sidecars._arguments() == kept


def test_sidecar_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(notes, "warn", warnings.append)
    sidecars._write(str(tmp_path / "nowhere" / "x.cleanrl_model"))
    assert warnings == ["no sidecar of x.cleanrl_model: No such file or directory"]


def test_names_of_secrets_are_those_of_the_platform() -> None:
    assert sidecars.SECRET_NAMES == secrets.SECRET_NAMES
