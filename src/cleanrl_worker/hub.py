"""Pushing files to the Hugging Face hub; a process of its own, which may fail or hang without touching a training.

    python -m cleanrl_worker.hub --repo-name NAME [--entity E] FILE...

The token is huggingface_hub's matter (HF_TOKEN, or an earlier login). The last line on stdout is the address.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="cleanrl_worker.hub", allow_abbrev=False)
    parser.add_argument("--repo-name", required=True)
    parser.add_argument("--entity", default="", help="user or organisation (default: whose token it is)")
    parser.add_argument("files", nargs="+", type=Path)
    flags = parser.parse_args(argv)
    print(push(flags.repo_name, flags.entity, flags.files), flush=True)


def push(repo_name: str, entity: str, files: Sequence[Path]) -> str:
    """Make the repository if there is none, add the files in one commit, and return its address."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    made = api.create_repo(f"{entity}/{repo_name}" if entity else repo_name, exist_ok=True)
    operations = [CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file) for file in files]
    api.create_commit(made.repo_id, operations, commit_message="Add a trained policy")
    return str(made)


if __name__ == "__main__":
    main()
