"""Commit and uncommitted changes of a source file, read without running anything that the repository names."""

import os
import subprocess
from pathlib import Path

import pytest

from cleanrl_worker.supervise import repository
from mosaic.contract.secrets import mask_text


def git(folder: Path, *words: str) -> str:
    settings = ("user.name=a", "user.email=a@b.c", "commit.gpgsign=false", "init.defaultBranch=trunk")
    command = ["git", *(word for setting in settings for word in ("-c", setting)), *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init")
    (folder / "train.py").write_text("rate = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "one")
    return folder


def look(file: Path) -> tuple[dict[str, object] | None, dict[str, str]]:
    sources = repository.Repositories(mask_text)
    return sources.of(file), sources.diffs


def test_a_clean_repository_has_a_commit_and_no_changes(repo: Path) -> None:
    found, diffs = look(repo / "train.py")
    commit = git(repo, "rev-parse", "HEAD")
    assert found == {"root": str(repo.resolve()), "commit": commit, "branch": "trunk", "dirty": False}
    assert diffs == {}


def test_uncommitted_changes_are_kept_once_for_several_files_without_secrets_and_env_files(repo: Path) -> None:
    (repo / ".env").write_text("WANDB_API_KEY=1\n")
    git(repo, "add", "-f", ".env")
    git(repo, "commit", "-m", "two")
    (repo / ".env").write_text("WANDB_API_KEY=abcdef1234567890\n")
    (repo / "train.py").write_text("rate = 2\napi_key = 'abcdef1234567890'\nurl = 'https://me:pw@host/x'\n")
    (repo / "extra.py").write_text("")
    sources = repository.Repositories(mask_text)
    found = sources.of(repo / "train.py")
    assert found is sources.of(repo / "extra.py") and found is not None
    assert found["dirty"] is True and found["untracked"] == ["extra.py"] and found["cut"] is False
    (text,) = sources.diffs.values()
    assert "+rate = 2" in text and ".env" not in text
    assert "abcdef1234567890" not in text and "me:pw" not in text and "+api_key = '***'" in text
    assert found["diff"] in sources.diffs


def test_changes_over_a_megabyte_are_cut_and_marked(repo: Path) -> None:
    (repo / "train.py").write_text("x = 1\n" * 400_000)
    found, diffs = look(repo / "train.py")
    (text,) = diffs.values()
    assert found is not None and found["cut"] is True
    assert len(text.encode()) < 1_000_100 and text.endswith("[cut after 1,000,000 bytes]\n")


def test_nothing_that_a_repository_names_is_run(repo: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program.sh"
    program.write_text(f'#!/bin/sh\necho "$0" >> {ran}\ncat\n')
    program.chmod(0o755)
    (repo / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    settings = ("core.pager", "core.fsmonitor", "diff.external", "filter.evil.clean", "filter.evil.process")
    for name in (*settings, "diff.evil.textconv", "diff.evil.command"):
        git(repo, "config", name, str(program))
    for hook in ("post-index-change", "pre-commit", "fsmonitor-watchman"):
        (repo / ".git/hooks").mkdir(exist_ok=True)
        os.link(program, repo / ".git/hooks" / hook)
    ran.unlink(missing_ok=True)
    (repo / "train.py").write_text("rate = 3\n")
    found, diffs = look(repo / "train.py")
    assert found is not None and found["dirty"] is True and "+rate = 3" in next(iter(diffs.values()))
    assert not ran.exists()


def test_files_outside_of_a_repository_installed_or_ignored_have_none(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("")
    installed = repo / ".venv/lib/site-packages"
    installed.mkdir(parents=True)
    (installed / "package.py").write_text("")
    (repo / ".gitignore").write_text("ignored.py\n")
    (repo / "ignored.py").write_text("")
    files = [tmp_path / "alone.py", installed / "package.py", repo / "ignored.py"]
    assert [look(file)[0] for file in files] == [None, None, None]


def test_a_missing_or_hanging_git_costs_nothing_but_a_short_wait(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert look(repo / "train.py") == (None, {})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(repository, "SECONDS", 0.1)
    assert look(repo / "train.py") == (None, {})
