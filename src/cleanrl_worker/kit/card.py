"""The policy's way to the hub: its model card, and the push by a process of its own."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mosaic.wire.paths import write_atomic

PUSH_SECONDS = 300.0


def push_policy(
    policy: Path, *, algo: str, env_id: str, seed: int, entity: str, returns: Sequence[float], video: Path | None
) -> dict[str, str]:
    """Push policy, sidecar, card and video; says what came of it as `repository` or `error`, and never raises."""
    card = policy.with_name("README.md")
    write_atomic(card, model_card(policy.name, algo=algo, env_id=env_id, seed=seed, returns=returns))
    files = [policy, policy.with_name(policy.name + ".json"), card]
    if video is not None:
        files.append(Path(shutil.copyfile(video, policy.with_name("replay.mp4"))))
    name = f"{env_id.replace('/', '-').replace(':', '-')}-{algo}-seed{seed}"
    command = [sys.executable, "-m", "cleanrl_worker.hub", "--repo-name", name, *map(str, files)]
    if entity:
        command += ["--entity", entity]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PUSH_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"the hub did not take the policy within {PUSH_SECONDS:.0f} s"}
    if done.returncode == 0:
        return {"repository": done.stdout.strip().rpartition("\n")[2]}
    return {"error": _reason(done.stderr)}


def model_card(file: str, *, algo: str, env_id: str, seed: int, returns: Sequence[float]) -> str:
    """Markdown with the hub's header: what it is, how good it is, how to run it."""
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


def _reason(stderr: str) -> str:
    """The exception and its message, as one line; the traceback above it helps nobody here."""
    start = max(
        (found.start() for found in re.finditer(r"^[\w.]*(?:Error|Exception)\b", stderr, re.MULTILINE)), default=0
    )
    return " ".join(stderr[start:].split())[:400] or "no reason was given"
