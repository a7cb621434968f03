"""Warnings of a script's process: lines in the notes of its run, which the worker emits as `warning` events."""

from __future__ import annotations

import json
import os
import sys
from typing import Set

_pid = os.getpid()
_path = os.path.join(os.getcwd(), "logs", "notes.jsonl")
_given: Set[str] = set()


def warn(message: str) -> None:
    """Emit a warning once; forked processes of the script emit none."""
    if message in _given or os.getpid() != _pid:
        return
    _given.add(message)
    line = json.dumps({"event": "warning", "payload": {"message": message}}) + "\n"
    try:
        with open(_path, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError:
        print("warning: " + message, file=sys.stderr)
