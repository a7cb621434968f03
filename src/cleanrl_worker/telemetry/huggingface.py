"""Pushing files to the Hugging Face hub from a separate process, which may fail or hang without affecting a training.

    python -m cleanrl_worker.telemetry.huggingface --policy FILE --returns JSON [--video FILE] [--entity E]

huggingface_hub finds the token (HF_TOKEN, or an earlier login). The last line on stdout is the address, the last on
stderr the error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from mosaic.contract.paths import write_atomic
from mosaic.contract.sidecars import read_sidecar


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="cleanrl_worker.telemetry.huggingface", allow_abbrev=False)
    parser.add_argument("--policy", type=Path, required=True, help="the policy; its sidecar lies beside it")
    parser.add_argument("--returns", default="[]", help="returns of its closing evaluation, a JSON list")
    parser.add_argument("--video", type=Path, help="an episode to show")
    parser.add_argument("--entity", default="", help="user or organisation (default: whose token it is)")
    flags = parser.parse_args(argv)
    about = read_sidecar(flags.policy)
    algo, env_id, seed = flags.policy.name.removesuffix(".cleanrl_model"), about["env_id"], about["seed"]
    card = flags.policy.with_name("README.md")
    returns = json.loads(flags.returns)
    write_atomic(card, model_card(flags.policy.name, algo=algo, env_id=env_id, seed=seed, returns=returns))
    files = [flags.policy, flags.policy.with_name(flags.policy.name + ".json"), card]
    if flags.video is not None:
        files.append(Path(shutil.copyfile(flags.video, flags.policy.with_name("replay.mp4"))))
    name = f"{env_id.replace('/', '-').replace(':', '-')}-{algo}-seed{seed}"
    try:
        print(push(name, flags.entity, files), flush=True)
    except (OSError, ValueError) as error:  # huggingface_hub's own errors are among these
        raise SystemExit(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}") from error


def push(repo_name: str, entity: str, files: Sequence[Path]) -> str:
    """Create the repository if it is missing, add the files in one commit, and return its address."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    made = api.create_repo(f"{entity}/{repo_name}" if entity else repo_name, exist_ok=True)
    operations = [CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file) for file in files]
    api.create_commit(made.repo_id, operations, commit_message="Add a trained policy")
    return str(made)


def model_card(file: str, *, algo: str, env_id: str, seed: int, returns: Sequence[float]) -> str:
    """Return the model card as Markdown with the hub's header: description, result, usage."""
    mean, spread = (statistics.fmean(returns), statistics.pstdev(returns)) if returns else (0.0, 0.0)
    result = f"{mean:.2f} +/- {spread:.2f}"
    header = f"""---
tags: [{env_id}, deep-reinforcement-learning, reinforcement-learning, cleanrl, mosaic]
library_name: cleanrl
model-index:
- name: {algo}
  results:
  - task: {{type: reinforcement-learning, name: reinforcement-learning}}
    dataset: {{name: {env_id}, type: {env_id}}}
    metrics:
    - {{type: mean_reward, value: {result}, name: mean_reward, verified: false}}
---
"""
    config = {"extras": {"mode": "policy_eval", "policy_path": file}}
    return f"""{header}
# {algo} on {env_id}

Trained by MOSAIC's `{algo}` with seed {seed}; arguments, versions and observation statistics are in `{file}.json`.
{len(returns)} sampled episodes returned {result}.

    pip install mosaic-rl
    echo '{json.dumps(config)}' > evaluation.json
    cleanrl-worker --config evaluation.json
"""


if __name__ == "__main__":
    main()
