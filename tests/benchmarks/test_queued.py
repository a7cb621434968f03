"""The queue file: what is written is read again; what cannot be a queue is refused in one line."""

import json
from pathlib import Path

import pytest
from rows import queued
from rows.queued import QueueError, Row

GOOD = {"algo": "ppo", "env_id": "CartPole-v1", "steps": 100, "seeds": [1, 2]}


def write(path: Path, *rows: object) -> Path:
    path.write_text(json.dumps({"format": 1, "rows": list(rows)}))
    return path


def test_rows_are_read_as_they_were_written_in_the_order_of_priority(tmp_path: Path) -> None:
    first = Row(algo="ppo", env_id="CartPole-v1", steps=10, seeds=(1,), priority=2, flags={"num_envs": 8}, label="x")
    second = Row(algo="dqn", env_id="CartPole-v1", steps=10, seeds=(1,), priority=1, checkpoints={"1": 5}, why="?")
    queued.save(tmp_path / "q.json", [first, second])
    assert queued.load(tmp_path / "q.json") == [second, first]


def test_the_queue_of_this_repository_is_whole() -> None:
    rows = queued.load(Path(queued.__file__).parents[1] / "queue.json")
    assert len(rows) > 80
    assert all(row.state == "waiting" or "jax" not in row.algo for row in rows)


def test_an_update_changes_one_row_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = write(tmp_path / "q.json", GOOD, GOOD | {"algo": "dqn"})
    assert queued.update(path, "dqn__CartPole-v1", state="running", checkpoints={"1": 7}).checkpoints == {"1": 7}
    assert [row.state for row in queued.load(path)] == ["queued", "running"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"seeds": "1-3"}, 'row 1 (ppo CartPole-v1): seeds must be a list of different whole numbers, not "1-3"'),
        ({"seeds": [1, 1]}, "seeds must be a list of different whole numbers"),
        ({"steps": 0}, "steps must be a whole number, 1 or more, not 0"),
        ({"state": "finished"}, "state must be one of queued, running, done, failed, waiting"),
        ({"algo": "ppoo"}, "unknown algo 'ppoo'; did you mean 'ppo'?"),
        ({"algo": "__init__"}, "unknown algo '__init__'"),
        ({"pryority": 1}, "unknown field 'pryority'; did you mean 'priority'?"),
    ],
)
def test_a_bad_row_is_refused_in_one_line(tmp_path: Path, row: dict[str, object], words: str) -> None:
    path = write(tmp_path / "q.json", GOOD | row)
    with pytest.raises(QueueError) as error:
        queued.load(path)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_no_queue_is_refused(tmp_path: Path) -> None:
    for text, words in (("{", "cannot be read"), ('{"format": 2, "rows": []}', 'expected {"format": 1')):
        (tmp_path / "q.json").write_text(text)
        with pytest.raises(QueueError, match=words):
            queued.load(tmp_path / "q.json")
    with pytest.raises(QueueError, match="no such file"):
        queued.load(tmp_path / "absent.json")
    with pytest.raises(QueueError, match="two rows are named ppo__CartPole-v1"):
        queued.load(write(tmp_path / "q.json", GOOD, GOOD))
