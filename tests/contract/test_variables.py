"""The table of environment variables and the `.env` file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError

CONTRACT = """
MOSAIC_HOME MOSAIC_CONFIG_FILE MOSAIC_RUN_ID MOSAIC_CHECKPOINT_DIR CLEANRL_AGENT_ID CLEANRL_NUM_ENVS
GYM_GUI_FASTLANE_ENABLED GYM_GUI_FASTLANE_VIDEO_MODE GYM_GUI_FASTLANE_GRID_LIMIT GYM_GUI_FASTLANE_SLOT
CLEANRL_FASTLANE_INTERVAL_MS CLEANRL_FASTLANE_MAX_DIM CLEANRL_FASTLANE_BUDGET MOSAIC_SCRIPT TRACK_TENSORBOARD
TRACK_WANDB WANDB_API_KEY WANDB_EMAIL MUJOCO_GL PYTHONUNBUFFERED SDL_NO_SIGNAL_HANDLERS MOSAIC_TARGET MOSAIC_TOKEN
MOSAIC_SHELL_PID
""".split()


def write(home: Path, text: str) -> dict[str, str]:
    (home / ".env").write_text(text)
    return variables.read_dotenv(home)


@pytest.mark.parametrize("name", CONTRACT)
def test_every_variable_of_the_contract_is_named(name: str) -> None:
    assert getattr(variables, name) == name


def test_every_constant_is_named_like_its_variable_and_has_one_line_of_doc() -> None:
    constants = {name for name in vars(variables) if name.isupper() and not name.startswith("_")} - {"DOCS"}
    assert constants == set(variables.DOCS)
    for name, doc in variables.DOCS.items():
        assert getattr(variables, name) == name
        assert doc and "\n" not in doc


def test_a_home_without_the_file_has_no_defaults(tmp_path: Path) -> None:
    assert variables.read_dotenv(tmp_path) == {}
    assert variables.read_dotenv(tmp_path / "not" / "there") == {}


def test_a_virtual_environment_called_dotenv_is_no_file_of_defaults(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert variables.read_dotenv(tmp_path) == {}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=value", "value"),
        ("  export KEY = value  ", "value"),
        ("KEY=", ""),
        ("KEY=a=b", "a=b"),
        ("KEY=two words # a comment", "two words"),
        ("KEY= # only a comment", ""),
        ("KEY=#value", "#value"),
        ("KEY=a#b", "a#b"),
        ("KEY=it's", "it's"),
        ('KEY="two words" # a comment', "two words"),
        ("KEY='a # b'", "a # b"),
        ('KEY=""', ""),
        (r'KEY="a\"b\n\\c"', 'a"b\n\\c'),
        (r"KEY='a\nb'", r"a\nb"),
        ('KEY="two\nlines"', "two\nlines"),
        ("KEY=value\r", "value"),
    ],
)
def test_a_line_is_read_as_people_write_it(tmp_path: Path, line: str, value: str) -> None:
    assert write(tmp_path, f"# first\n\nA=1\n{line}\nZ=2") == {"A": "1", "KEY": value, "Z": "2"}


def test_the_lines_around_and_bare_names_do_no_harm(tmp_path: Path) -> None:
    assert write(tmp_path, "\ufeffA=1\n\n   \n# c\nBARE\nexport OTHER\nB='2'\n\nA=3") == {"A": "3", "B": "2"}


@pytest.mark.parametrize("bad", ['KEY="open', "KEY='open", "1KEY=secret", 'KEY="a"b', "two words", "=secret"])
def test_a_line_that_cannot_be_read_is_named_without_its_value(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError, match="line 2: not KEY=VALUE") as refused:
        write(tmp_path, f"A=1\n{bad}\n")
    assert "secret" not in str(refused.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"A=\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read .*\.env"):
        variables.read_dotenv(tmp_path)
