"""Homes with a past: thousands of finished runs, curves of a million points."""

from pathlib import Path

from mosaic.trainer.registry import metrics_store
from mosaic.trainer.registry.registry import NewRun, Registry


def fill_curves(folder: Path, points: int, curves: int = 20) -> None:
    """One ended run, `curves`, with this many points in each of its curves."""
    registry = Registry(folder)
    config = {"algo": "ppo", "env_id": "CartPole-v1"}
    columns = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": points}
    registry.add_run(NewRun("curves", {"metadata": {"worker": {"config": config}}}, config, (), columns))
    for start in range(0, points, 50_000):
        rows = [
            {"step": n, "time": n * 0.01, **{f"curve/{k}": float((n * (k + 1)) % 977) for k in range(curves)}}
            for n in range(start, min(points, start + 50_000))
        ]
        with registry.database.write() as connection:
            metrics_store.append_rows(connection, 1, rows)
    registry.cancel_run("curves")
    registry.close()


def fill_runs(folder: Path, runs: int) -> None:
    """Finished runs `run-000000` and on."""
    registry = Registry(folder)
    config = {"algo": "ppo", "env_id": "CartPole-v1", "extras": {"algo_params": {f"p{n}": n for n in range(40)}}}
    registry.database._writer.execute("PRAGMA synchronous = OFF")  # what is measured is reading
    for number in range(runs):
        columns = {"algo": "ppo", "env_id": "CartPole-v1", "seed": number, "total_timesteps": 500_000}
        payload = {"metadata": {"worker": {"config": config}}}
        registry.add_run(NewRun(f"run-{number:06d}", payload, config, (), columns, refused="not yet"))
    with registry.database.write() as connection:
        connection.execute(
            "UPDATE runs SET state = 'COMPLETED', reason = '', step = 500000, ended_at = created_at + 60"
        )
    registry.close()
