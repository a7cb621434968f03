"""The extra of mosaic-rl that installs a package, and its pip line."""

EXTRA_OF = {
    "ale_py": "atari",
    "Box2D": "box2d",
    "cv2": "foreign",
    "dm_control": "dm_control",
    "envpool": "envpool",
    "flax": "jax",
    "fsspec": "storage",
    "imageio": "mujoco",
    "jax": "jax",
    "mujoco": "mujoco",
    "minigrid": "",  # part of a plain install
    "multi_agent_ale_py": "multiagent",
    "optax": "jax",
    "pettingzoo": "multiagent",
    "s3fs": "storage",
    "shimmy": "dm_control",
}

QT_LINE = "sudo apt-get install -y libqt5gui5 libqt5core5a"


def pip_line(package: str) -> str:
    """Return the pip command that installs a package; quoted because zsh reads brackets as a pattern."""
    extra = EXTRA_OF.get(package)
    return f"pip install 'mosaic-rl[{extra}]'" if extra else "pip install mosaic-rl"


def told_by(error: BaseException) -> str | None:
    """Return `needs Box2D: pip install …` for a failed import of a package of an extra, or of Qt, else None.

    Gymnasium raises an error of its own, with its own pip lines, from the import's. EnvPool does the same for Procgen,
    which is linked with libraries that no package contains.
    """
    cause = error.__cause__ or error
    module = str(getattr(cause, "name", ""))
    library, found, _ = str(cause).partition(": cannot open shared object file")
    if "libQt5" in str(cause):
        return f"needs Qt 5, which is missing: {QT_LINE}"
    if found and module.endswith("procgen_envpool"):  # what Qt 5 itself needs
        return f"needs {library}, which is missing: {QT_LINE}"
    return needs(module.partition(".")[0])


def needs(package: str) -> str | None:
    """Return `needs Box2D: pip install …` for a package that an extra installs, else None."""
    return f"needs {package.replace('_', '-')}: {pip_line(package)}" if package in EXTRA_OF else None
