"""Paths of the launcher and of the folder that our packages are imported from."""

from pathlib import Path

LAUNCHER = Path(__file__).with_name("launcher.py")
SOURCES = Path(__file__).parents[2]
