"""`strtobool` of `distutils.util`, and the version of Stable-Baselines3 that CleanRL's files require."""

from __future__ import annotations

SB3_VERSION = "2.3.2"
_TRUE, _FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0")


def strtobool(value: str) -> int:
    """Return 1 for a word that means true, 0 for one that means false; ValueError for any other."""
    word = value.lower()
    if word not in _TRUE + _FALSE:
        raise ValueError("invalid truth value %r" % value)
    return int(word in _TRUE)
