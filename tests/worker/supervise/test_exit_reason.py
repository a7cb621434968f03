"""What the end of an algorithm means, and what to do about it."""

from pathlib import Path

import pytest

from cleanrl_worker.supervise.exit_reason import describe_end, signal_name


@pytest.mark.parametrize(
    ("code", "line", "advice"),
    [
        (1, "OSError: [Errno 28] No space left on device", "disk is full"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "GPU's memory"),
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 26.9 GiB", "machine's memory"),
        (-9, "", "machine's memory"),
        (1, "ModuleNotFoundError: No module named 'envpool.registration'", "'envpool.registration'"),
        (1, "mujoco.FatalError: an OpenGL platform library has not been loaded", "MUJOCO_GL=egl"),
        (1, "ImportError: Cannot initialize a EGL device display", "MUJOCO_GL=egl"),
        (1, "Exception: ROM is missing for pong, see the documentation", "Atari ROMs"),
        (-7, "", "/dev/shm"),
        (
            1,
            "ValueError: Expected parameter logits ... but found invalid values:\ntensor([[nan",
            "NaN",
        ),
        (1, "gymnasium.error.NameNotFound: Environment `Foo` doesn't exist.", "env_id"),
        (1, "TypeError: Tiny.__init__() got an unexpected keyword argument 'render_mode'", "capture_video=false"),
        (
            1,
            "UserWarning: render_mode='rgb_array' that is not in the possible render_modes ([])",
            "capture_video=false",
        ),
        (1, "OSError: [Errno 24] Too many open files", "ulimit"),
        (-11, "", "native code"),
        (75, "", "started again"),
    ],
)
def test_known_causes_come_with_advice(tmp_path: Path, code: int, line: str, advice: str) -> None:
    described = describe_end(code, line.splitlines(), tmp_path)
    assert advice in (described["hint"] or ""), described


def test_unknown_cause_comes_without_advice(tmp_path: Path) -> None:
    lines = ["Traceback:", "ValueError: FROM here on, illegal"]
    assert describe_end(4, lines, tmp_path) == {"exit_code": 4, "signal": None, "stderr_tail": lines, "hint": None}
    assert describe_end(-15, [], tmp_path) == {"exit_code": None, "signal": "SIGTERM", "stderr_tail": [], "hint": None}


def test_signals_have_names() -> None:
    assert [signal_name(code) for code in (0, 3, -9, -15, -64, -200)][:4] == [None, None, "SIGKILL", "SIGTERM"]
    assert signal_name(-200) == "signal 200"
