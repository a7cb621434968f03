"""What must be the same on a GPU: with graphs and without, once more, resumed, on the CPU; for benchmarks/gpu.py."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_place import Case, Failed, Place

AT_ONCE = 10  # runs side by side: nothing is timed here
Tell = Callable[[dict[str, Any]], None]


def check(cases: list[Case], place: Place, tell: Tell) -> None:
    """Several runs side by side."""
    for snippet in (FALLBACK, TRANSFERS):
        print(place.python("-c", snippet).strip(), flush=True)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        for row in pool.map(lambda case: compare(case, place), cases):
            tell(row)


def compare(case: Case, place: Place) -> dict[str, Any]:
    """Final states of runs that should be the same."""
    row: dict[str, Any] = {"algorithm": case.name, "steps": case.checked_steps}
    try:
        whole = (
            *case.checked_with,
            *teacher(case, place),
            f"--checkpoint-every={case.checked_steps // 2}",
            "--checkpoint-episodes=0",
        )
        graphs, again, eager = (
            place.train(case, case.checked_steps, *whole, flag)
            for flag in ("--cudagraphs", "--cudagraphs", "--no-cudagraphs")
        )
        half = sorted((graphs / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))[0]
        resumed = place.train(case, case.checked_steps, f"--resume={half}")
    except Failed as failure:
        print(failure, flush=True)
        return row | {"graphs – no graphs": "failed", "graphs – again": "", "graphs – resumed half way": ""}
    return row | {
        "graphs – no graphs": difference(graphs, eager),
        "graphs – again": difference(graphs, again),
        "graphs – resumed half way": difference(graphs, resumed),
    }


def teacher(case: Case, place: Place) -> tuple[str, ...]:
    """The flag for a teacher where one is needed: a DQN that has learned a little."""
    if not case.algo.startswith("qdagger"):
        return ()
    dqn = Case("dqn_atari", case.env_id, 0, 0, (), 0, our_flags=case.our_flags)
    folder = place.train(dqn, 600, "--learning-starts=100", "--buffer-size=1000", "--save-model")
    return (f"--teacher-policy-path={next(folder.glob('runs/*/dqn_atari.cleanrl_model'))}",)


def difference(one: Path, other: Path) -> str:
    """The largest one in the last states; generators are compared too."""
    import numpy as np

    states = []
    for folder in (one, other):
        last = max((folder / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
        states.append(dict(arrays_of(last / "state.safetensors")))
    worst = max(
        float(np.abs(value.astype(np.float64) - states[1][name].astype(np.float64)).max(initial=0.0))
        for name, value in states[0].items()
    )
    return "none" if worst == 0 else f"{worst:.1e}"


def arrays_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Read here without the library: this process has the machine's own packages only."""
    import numpy as np

    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    kinds = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8, "I32": np.int32, "BOOL": np.bool_}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            yield name, np.frombuffer(data[8 + size + first : 8 + size + end], kinds[entry["dtype"]])


# -- jax ------------------------------------------------------------------------------------------------------------

JAX_CASES = (
    Case("ppo_jax", "CartPole-v1", 100_000, 0, (), 0),
    Case("dqn_jax", "CartPole-v1", 40_000, 0, (), 0, our_flags=("--learning-starts=2000",)),
)


def jax(place: Place, tell: Tell) -> None:
    """The files in JAX on the GPU and on the CPU: the first losses, and the returns in the end."""
    print(place.python("-c", NOT_ALL_MEMORY).strip(), flush=True)
    with ThreadPoolExecutor(max_workers=4) as pool:
        jobs = [(case, flag) for case in JAX_CASES for flag in ("--cuda", "--no-cuda")]
        folders = list(pool.map(lambda job: place.train(job[0], job[0].total, job[1]), jobs))
    for case, on_gpu, on_cpu in zip(JAX_CASES, folders[::2], folders[1::2], strict=True):
        (first, last_return), (cpu_first, cpu_last_return) = outcome(on_gpu), outcome(on_cpu)
        apart = max(abs(first[tag] - cpu_first[tag]) / max(abs(cpu_first[tag]), 1e-3) for tag in first)
        tell(
            {
                "algorithm": case.name,
                "steps": case.total,
                "first losses apart by": f"{100 * apart:.2g} %",
                "last 20 returns, GPU": round(last_return, 1),
                "CPU": round(cpu_last_return, 1),
            }
        )


def outcome(folder: Path) -> tuple[dict[str, float], float]:
    """The first losses that a run has logged, and the mean of its last 20 returns."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = next(row for row in rows if any(tag.startswith("losses/") for tag in row))
    numbers = {tag: float(value) for tag, value in losses.items() if tag.startswith("losses/")}
    returns = [row["charts/episodic_return"] for row in rows if "charts/episodic_return" in row][-20:]
    return numbers, sum(returns) / max(len(returns), 1)


NOT_ALL_MEMORY = """
from cleanrl_worker.algorithms.dqn_jax import Args
from cleanrl_worker.nets.jax.trees import prepare
prepare(Args())
import jax, jax.numpy as jnp
found = jax.devices()[0]
jnp.ones((1000, 1000)).block_until_ready()
import torch
free, total = torch.cuda.mem_get_info()
taken = f"{(total - free) / 2**30:.1f} of {total / 2**30:.0f} GB"
print(f"jax {jax.__version__} computes on {found.platform} and has taken {taken}")
assert found.platform == "gpu", "JAX finds no GPU here"
assert total - free < 0.2 * total, "JAX has taken the memory as a whole"
"""


# -- what is asked of one process -----------------------------------------------------------------------------------

FALLBACK = """
import torch
from types import SimpleNamespace
from cleanrl_worker.learn import graphs
told = []
def a_run():
    args = SimpleNamespace(cudagraphs=True, compile=False)
    tell = lambda kind, payload: told.append((kind, payload["message"]))
    return SimpleNamespace(args=args, device=torch.device("cuda"), tell=tell)
total = torch.zeros((), device="cuda")

@graphs.captured(a_run())
def looks(x):
    total.add_(x.sum())
    if x.sum().item() == 0:  # a value is looked at: this cannot be recorded
        total.zero_()
    return torch.rand(4, device="cuda")

calls = 0
@graphs.captured(a_run())
def breaks(x):
    global calls
    calls += 1
    total.add_(x.sum())
    if calls == graphs.WARM_UP + 1:
        x.sum().item()
    return torch.rand(4, device="cuda")

for update in (looks, breaks):
    total.zero_()
    for _ in range(8):
        update(torch.ones(4, device="cuda"))
    assert total.item() == 32, total
assert [kind for kind, _ in told] == ["warning", "warning"], told
assert 0 < torch.rand(1000, device="cuda").mean().item() < 1
print("what cannot be recorded goes on with one warning:", *(message for _, message in told), sep="\\n  ")
"""

TRANSFERS = """
import numpy as np, torch
from cleanrl_worker.learn import batches
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.envs.episodes import Step
from cleanrl_worker.learn.frame_buffer import FrameReplay

gpu = torch.device("cuda")
for largest in (batches.LARGEST_TWIN, 0):  # with a twin on the GPU, and where there is no room for one
    batches.LARGEST_TWIN, batches.BLOCK = largest, 7
    plain, ours = (FrameReplay(40, (4, 12, 12)) for _ in range(2))
    for memory in (plain, ours):
        memory.frames = memory.frames[:60].copy()
    drawing = batches.FrameBatches(ours, 16, gpu)
    rng, draws = np.random.default_rng(1), [np.random.default_rng(2) for _ in range(2)]
    obs = rng.integers(0, 255, (2, 4, 12, 12)).astype(np.uint8)
    for count in (5, 1, 30, 2, 90, 5, 30):
        for _ in range(count):
            final = np.concatenate([obs[:, 1:], rng.integers(0, 255, (2, 1, 12, 12)).astype(np.uint8)], axis=1)
            ends, after = rng.random(2) < 0.1, final.copy()
            after[ends] = rng.integers(0, 255, (int(ends.sum()), 4, 12, 12))
            actions, rewards = rng.integers(0, 5, 2), rng.random(2)
            for memory in (plain, ours):
                memory.add(obs, actions, Step(after, rewards, ends, np.zeros(2, bool), final, []))
            obs = after
        expected, found = plain.sample(16, draws[0]), drawing.at(drawing.draw(draws[1]))
        for name, part in zip(expected._fields, found):
            np.testing.assert_array_equal(part.cpu().numpy(), getattr(expected, name))
courier = Courier(gpu)
for number in range(100):
    sent = courier.send(np.full((8, 4, 84, 84), number, np.uint8))
    assert (courier.fetch(sent.float().mean(dim=(1, 2, 3))) == number).all()
print("frames and observations reach the GPU as they are, with a twin of the memory there and without")
"""
