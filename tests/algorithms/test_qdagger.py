"""QDagger's lesson: the teacher plays, the student learns offline, then online, and trusts it less and less."""

import json
import os

import numpy as np
import pytest
import tiny_envs
import torch

from cleanrl_worker.algorithms import dqn_atari, qdagger_dqn_atari_impalacnn, qdagger_dqn_atari_jax_impalacnn
from cleanrl_worker.algorithms.qdagger_dqn_atari_impalacnn import Args, load_teacher, main, teacher_network
from cleanrl_worker.envs import vectors
from cleanrl_worker.learn import dqn_files
from cleanrl_worker.nets.jax.images import TORCH_PADDING, ImpalaNetwork
from cleanrl_worker.run import training
from mosaic.contract import metrics

SMALL = {"env_id": "mosaic/Catch-v0", "learning_starts": 10, "batch_size": 4, "buffer_size": 64, "num_threads": 1}
FILES = (qdagger_dqn_atari_impalacnn, qdagger_dqn_atari_jax_impalacnn)


@pytest.mark.parametrize("module", FILES)
def test_the_phases_are_stages_in_the_events(module, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training.Run, "_begin_line", lambda _run: True)
    monkeypatch.setenv("MOSAIC_SHELL_PID", str(os.getppid()))
    (tmp_path / "logs").mkdir()
    lesson = tiny_envs.small_lesson(offline_steps=4)
    module.main(module.Args(run_dir=tmp_path, cuda=False, total_timesteps=24, **SMALL, **lesson))
    notes = map(json.loads, (tmp_path / "logs" / "notes.jsonl").read_text().splitlines())
    stages = [note["payload"] for note in notes if note["event"] == "stage"]
    told = [(stage["stage"], stage["step"], stage["reason"]) for stage in stages]
    offline = (1, 0, "offline, from what the teacher played")
    assert told == [(0, 0, "the teacher plays"), offline, (2, 4, "online")]
    rows = metrics.read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if "charts/teacher/avg_episodic_return" in row] == [0]
    assert [row["step"] for row in rows if "charts/offline/loss" in row] == [4]
    assert all(row["step"] > 4 for row in rows if "charts/episodic_return" in row), "the student's own games"
    assert "the teacher plays: 40 of 40 steps" not in (said := capsys.readouterr().out)
    assert "the teacher plays: 0 of 40 steps" in said and "the teacher plays: 39 of 40 steps" in said


def test_a_student_copies_a_teacher_that_knows_what_it_wants(tmp_path):
    teacher, envs = dqn_atari.QNetwork, vectors.atari(Args(env_id="mosaic/Catch-v0"))
    torch.manual_seed(0)
    state = teacher(envs).state_dict()
    state["network.9.weight"] *= 0.0
    state["network.9.bias"] = torch.tensor([0.0, 9.0, 0.0])  # always left
    torch.save(state, tmp_path / "teacher.cleanrl_model")
    lesson = {"teacher_steps": 40, "offline_steps": 40, "teacher_eval_episodes": 1, "learning_rate": 1e-3}
    lesson["teacher_policy_path"] = tmp_path / "teacher.cleanrl_model"
    main(Args(run_dir=tmp_path / "run", cuda=False, total_timesteps=41, save_model=True, **SMALL, **lesson))
    (policy,) = tmp_path.glob("run/runs/*/*impalacnn.cleanrl_model")
    act = qdagger_dqn_atari_impalacnn.load_policy(torch.load(policy, weights_only=True), envs, {})
    assert (act(np.concatenate([envs.reset(seed) for seed in range(20)]), None) == 1).mean() > 0.9


@pytest.mark.parametrize("network", [dqn_atari.QNetwork, qdagger_dqn_atari_impalacnn.QNetwork])
def test_dqn_policies_of_either_network_are_teachers(network, tmp_path):
    envs = vectors.atari(Args(env_id="mosaic/Catch-v0"))
    given = network(envs)
    torch.save(given.state_dict(), tmp_path / "x.cleanrl_model")
    args = Args(env_id="mosaic/Catch-v0", teacher_policy_path=tmp_path / "x.cleanrl_model")
    teacher = load_teacher(args, lambda state: teacher_network(state, envs))
    obs = torch.from_numpy(envs.reset(1))
    assert torch.equal(teacher(obs), given(obs)) and not any(part.requires_grad for part in teacher.parameters())


@pytest.mark.parametrize("network", [dqn_atari.QNetwork, qdagger_dqn_atari_impalacnn.QNetwork])
def test_a_teacher_thinks_the_same_in_torch_and_in_jax_whoever_wrote_its_file(network):
    """The IMPALA networks of the two halve their frames differently: each is played as it was trained."""
    envs, in_jax = vectors.atari(Args(env_id="mosaic/Catch-v0")), qdagger_dqn_atari_jax_impalacnn.teacher_network
    torch.manual_seed(0)
    of_torch = {name: tensor.numpy() for name, tensor in network(envs).state_dict().items()}
    obs = np.random.default_rng(0).integers(0, 256, (2, 4, 84, 84), dtype=np.uint8)
    thoughts = []
    for state in (of_torch, dqn_files.as_flax(of_torch)):
        expected = teacher_network(state, envs)(torch.from_numpy(obs)).numpy()
        teacher = in_jax(state, envs)
        found = qdagger_dqn_atari_jax_impalacnn.values_of(*teacher, obs)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        thoughts.append(expected)
        if isinstance(teacher.network, ImpalaNetwork):
            assert teacher.network.pool_padding == (TORCH_PADDING if state is of_torch else "SAME")
    assert np.allclose(*thoughts) == (network is dqn_atari.QNetwork)


def test_without_a_teacher_the_line_says_what_to_give(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)  # importing it fails
    with pytest.raises(SystemExit, match="a teacher is needed: give --teacher-policy-path, or pip install"):
        main(Args(run_dir=tmp_path, cuda=False, **SMALL | {"env_id": "Breakout-v5"}))


@pytest.mark.parametrize("env_id", ["BreakoutNoFrameskip-v4", "ALE/Breakout-v5", "Breakout-v5"])
def test_the_hub_is_asked_for_a_game_by_the_id_that_cleanrl_knows(env_id, monkeypatch):
    asked = []

    def download(*given):
        asked.append(given)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(SystemExit, match=r"no teacher from the hub .*: no network; or give --teacher-policy-path"):
        load_teacher(Args(env_id=env_id), dict)
    assert asked == [("cleanrl/BreakoutNoFrameskip-v4-dqn_atari-seed1", "dqn_atari.cleanrl_model")]
    with pytest.raises(SystemExit, match="the hub has none for mosaic/Catch-v0: give --teacher-policy-path"):
        load_teacher(Args(env_id="mosaic/Catch-v0"), dict)


@pytest.mark.parametrize("module", FILES)
@pytest.mark.parametrize(
    ("teacher", "student", "weight"),
    [(20.0, 5.0, 0.75), (20.0, -21.0, 1.0), (20.0, 25.0, 0.0), (-0.5, -0.8, 1.0), (-0.5, 0.2, 0.0)],
)
def test_the_better_the_student_the_less_the_teacher_counts(module, teacher, student, weight):
    lesson = module.Lesson()
    lesson.teacher_return = teacher
    lesson.student_returns.extend([student] * 9)
    assert lesson.weight() == 1.0, "too few games to tell"
    lesson.student_returns.append(student)
    assert lesson.weight() == pytest.approx(weight)
