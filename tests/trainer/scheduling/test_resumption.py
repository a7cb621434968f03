"""How a run goes on: where its checkpoints are looked for."""

from pathlib import Path

import pytest

from mosaic.contract.checkpoints import write_checkpoint
from mosaic.contract.paths import RunPaths
from mosaic.trainer.scheduling.resumption import checkpoints_of, next_attempt


@pytest.mark.parametrize("by", ["variable", "dotenv"])
def test_the_next_attempt_finds_a_relative_checkpoint_folder_from_wherever_it_is_started(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths("run-1", tmp_path / "home")
    paths.create()
    monkeypatch.chdir(tmp_path)
    write_checkpoint(paths.folder / "mine", 64, {"exact": True, "score": None}, {"a": b"x"})
    environment = {"MOSAIC_CHECKPOINT_DIR": "mine"} if by == "variable" else {}
    if by == "dotenv":
        (paths.home / ".env").write_text("MOSAIC_CHECKPOINT_DIR=mine\n")
    extras = next_attempt({"algo": "ppo"}, paths, checkpoints_of(environment, paths))["extras"]
    assert extras == {"mode": "resume_training", "checkpoint_path": str(paths.folder / "mine")}
