"""Scripts as files: headers, and where a script may lie."""

from pathlib import Path

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.scripts import find_script, list_scripts, read_script

COMMAND = ("/usr/bin/python", "-m", "cleanrl_worker.cli")


def test_header_is_read_from_the_comments_at_the_top(tmp_path: Path) -> None:
    path = tmp_path / "one.sh"
    path.write_text(
        "#!/bin/bash\n# @description: rooms: small, large \n#@env_family minigrid\n\n# @phases: 3\n# a remark\n"
        "# @total_timesteps: 600,000\n# @author: A. Person\n# @unknown: x\nset -e\n# @phases: 9\n"
    )
    script = read_script(path)
    assert (script.description, script.env_family, script.phases) == ("rooms: small, large", "minigrid", 3)
    assert (script.total_timesteps, script.author, script.algo) == (600000, "A. Person", "")


def test_header_that_says_nothing_or_nonsense_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "one.sh"
    path.write_bytes(b"# @phases: many\n# @total_timesteps: -3\n\xff\xfe true\n")
    script = read_script(path)
    assert (script.phases, script.total_timesteps, script.description) == (None, None, "")


def test_own_scripts_are_listed_before_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("b.sh", "a.sh", "scripts/c.sh", "notes.txt"):
        (tmp_path / name).write_text("true\n")
    found = list_scripts(tmp_path, COMMAND)
    assert [script.path.name for script in found[:3]] == ["a.sh", "b.sh", "c.sh"]
    assert all(script.shipped for script in found[3:]) and len(found) == 6


def test_script_is_found_in_the_home_then_among_the_shipped_and_nowhere_else(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "scripts").mkdir(parents=True)
    (home / "scripts" / "mine.sh").write_text("true\n")
    (tmp_path / "outside.sh").write_text("true\n")
    (home / "link.sh").symlink_to(tmp_path / "outside.sh")
    assert not find_script("scripts/mine.sh", home, COMMAND).shipped
    assert find_script("curriculum_doorkey.sh", home, COMMAND).shipped
    for name in ("../outside.sh", "link.sh", str(tmp_path / "outside.sh"), "scripts", "x" * 5000, "a\0b", ""):
        with pytest.raises(ConfigError, match="is not there; it lies in"):
            find_script(name, home, COMMAND)
    with pytest.raises(ConfigError, match=r"did you mean 'mine\.sh'"):
        find_script("mime.sh", home, COMMAND)
