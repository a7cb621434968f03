"""What is said where an import fails."""

import pytest

from mosaic.contract.extras import QT_LINE, told_by

LOADER = "cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("No module", name="Box2D.b2"), "needs Box2D: pip install 'mosaic-rl[box2d]'"),
        (ImportError(f"libQt5Gui.so.5: {LOADER}", name="procgen_envpool"), f"needs Qt 5, which is missing: {QT_LINE}"),
        (
            ImportError(f"libharfbuzz.so.0: {LOADER}", name="procgen_envpool"),
            f"needs libharfbuzz.so.0, which is missing: {QT_LINE}",
        ),
        (ImportError(f"libfoo.so.1: {LOADER}", name="my_envs"), None),
        (ValueError("bad"), None),
    ],
)
def test_what_an_extra_or_the_system_brings_is_named_with_the_line_to_install_it(
    error: Exception, said: str | None
) -> None:
    wrapped = RuntimeError("pip install something else")
    wrapped.__cause__ = error
    assert told_by(error) == told_by(wrapped) == said
