"""Which extra of mosaic-rl installs a package, and the line that says so."""

EXTRA_OF = {
    "ale_py": "atari",
    "Box2D": "box2d",
    "dm_control": "dm_control",
    "envpool": "envpool",
    "flax": "jax",
    "fsspec": "storage",
    "imageio": "mujoco",
    "jax": "jax",
    "mujoco": "mujoco",
    "minigrid": "",  # a plain install brings it
    "multi_agent_ale_py": "multiagent",
    "optax": "jax",
    "pettingzoo": "multiagent",
    "s3fs": "storage",
    "shimmy": "dm_control",
}


def pip_line(package: str) -> str:
    """The command that installs it; quoted because zsh reads brackets as a pattern."""
    extra = EXTRA_OF.get(package)
    return f"pip install 'mosaic-rl[{extra}]'" if extra else "pip install mosaic-rl"


def told_by(error: BaseException) -> str | None:
    """`needs Box2D: pip install …` where an import failed for what an extra installs, or for Qt, else None.

    Gymnasium raises an error of its own, with pip lines of its own, from the import's. EnvPool does so too for Procgen,
    which is linked with libraries that no package brings.
    """
    if "libQt5" in str(error.__cause__ or error):
        return "needs Qt 5, which is missing: sudo apt-get install -y libqt5gui5 libqt5core5a"
    return needs(str(getattr(error.__cause__ or error, "name", "")).partition(".")[0])


def needs(package: str) -> str | None:
    """`needs Box2D: pip install …` for a package that an extra installs, else None."""
    return f"needs {package.replace('_', '-')}: {pip_line(package)}" if package in EXTRA_OF else None
