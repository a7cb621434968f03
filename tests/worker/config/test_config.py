import json
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config.config import (
    CleanRLWorkerConfig,
    WorkerConfig,
    load_worker_config,
    parse_worker_config,
    read_object,
)
from mosaic.contract.checkpoints import write_checkpoint
from mosaic.contract.errors import ConfigError
from mosaic.contract.fields import EXTRAS
from mosaic.contract.paths import RunPaths

FLAT = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 10000}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MOSAIC_RUN_ID", "TRACK_TENSORBOARD", "TRACK_WANDB", "CLEANRL_NUM_ENVS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(payload: Any, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ValueError) as caught:
        parse_worker_config(payload, overrides)
    assert isinstance(caught.value, ConfigError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_extras(**extras: Any) -> dict[str, Any]:
    return {**FLAT, "extras": extras}


def test_four_fields_are_enough() -> None:
    config = parse_worker_config(FLAT)
    assert (config.algo, config.env_id, config.seed, config.total_timesteps) == ("ppo", "CartPole-v1", 1, 10000)
    assert (config.extras, config.worker_id, config.mode, config.warnings) == ({}, None, "train", ())
    assert len(config.run_id) == 26
    assert WorkerConfig is CleanRLWorkerConfig


def test_nested_payload_gives_the_same_config_as_the_flat_one(home: Path) -> None:
    flat = {**FLAT, "run_id": "run-1", "extras": {"algo_params": {"num_envs": 8}}}
    nested = {"metadata": {"worker": {"config": flat}}}
    (home / "nested.json").write_text(json.dumps(nested))
    assert load_worker_config(home / "nested.json") == parse_worker_config(flat)


def test_nested_payload_names_the_worker_and_its_agent_unless_the_config_does() -> None:
    worker = {"worker_id": "w1", "agent_id": "a1", "config": FLAT}
    config = parse_worker_config({"metadata": {"ui": {"agent_id": "a0"}, "worker": worker}})
    assert (config.worker_id, config.extras["agent_id"]) == ("w1", "a1")
    worker["config"] = {**FLAT, "worker_id": "w2", "agent_id": "a2"}
    config = parse_worker_config({"metadata": {"worker": worker}})
    assert (config.worker_id, config.extras["agent_id"]) == ("w2", "a2")


def test_secrets_of_a_payload_stay_out_of_every_copy_of_the_config() -> None:
    payload = {"environment": {"WANDB_API_KEY": "s3cret"}, "metadata": {"worker": {"config": FLAT}}}
    config = parse_worker_config(payload)
    assert config.environment == {"WANDB_API_KEY": "s3cret"}
    assert "s3cret" not in f"{config} {config.to_dict()} {config.raw}"
    assert config.with_overrides(seed=2).environment == config.environment


def test_variables_of_a_payload_count_like_those_of_the_process() -> None:
    payload = {"environment": {"TRACK_WANDB": "1"}, "metadata": {"worker": {"config": FLAT}}}
    assert parse_worker_config(payload).extras == {"track_wandb": True}


def test_what_only_the_trainer_acts_on_is_said_in_one_warning() -> None:
    payload = {
        "resources": {"gpus": {"requested": 0}},
        "schedule": {"max_duration_seconds": 5},
        "metadata": {"worker": {"config": {**FLAT, "zzz": 1}, "use_grpc": True}},
    }
    config = parse_worker_config(payload)
    expected = "only a trainer daemon acts on schedule, metadata.worker.use_grpc; this worker does not"
    assert config.warnings[1:] == (expected,)
    assert config.with_overrides(seed=2).warnings == config.warnings
    assert parse_worker_config({"metadata": {"worker": {"config": FLAT}}}).warnings == ()


def test_nested_payload_without_a_config_is_refused_with_its_path() -> None:
    assert "metadata.worker.config" in refusal({"metadata": {"worker": {}}})


def test_absent_or_null_seed_is_drawn_and_zero_is_a_seed() -> None:
    drawn = {parse_worker_config({**FLAT, "seed": None}).seed for _ in range(5)}
    assert len(drawn) > 1
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in drawn)
    assert parse_worker_config({**FLAT, "seed": 0}).seed == 0


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", True])
def test_seed_that_no_generator_takes_is_refused(seed: Any) -> None:
    assert "seed" in refusal({**FLAT, "seed": seed})


@pytest.mark.parametrize("name", ["algo", "env_id", "total_timesteps"])
def test_missing_field_is_named(name: str) -> None:
    assert f"{name!r} is missing" in refusal({key: value for key, value in FLAT.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algo", 3),
        ("algo", ""),
        ("env_id", ["CartPole-v1"]),
        ("env_id", "Cart\nPole"),
        ("total_timesteps", "many"),
        ("total_timesteps", 1.5),
        ("total_timesteps", True),
        ("worker_id", 7),
        ("extras", []),
        ("extras", "x"),
    ],
)
def test_ill_typed_field_is_named(name: str, value: Any) -> None:
    assert refusal({**FLAT, name: value}).startswith(name)


@pytest.mark.parametrize("steps", [0, -5])
def test_training_needs_timesteps(steps: int) -> None:
    assert f"total_timesteps is {steps}" in refusal({**FLAT, "total_timesteps": steps})


def test_a_million_may_be_written_as_json_writes_it(home: Path) -> None:
    (home / "c.json").write_text('{"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1e6}')
    assert load_worker_config(home / "c.json").total_timesteps == 1_000_000


@pytest.mark.parametrize("run_id", ["../x", "/abs", "", "a" * 300, "a\nb", "a b", 7])
def test_run_id_that_could_leave_its_folder_is_refused(run_id: Any) -> None:
    assert "run id" in refusal({**FLAT, "run_id": run_id})


def test_run_id_comes_from_the_config_then_the_environment_then_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_RUN_ID", "from-environment")
    assert parse_worker_config({**FLAT, "run_id": "mine"}).run_id == "mine"
    assert parse_worker_config(FLAT).run_id == "from-environment"
    monkeypatch.setenv("MOSAIC_RUN_ID", "../x")
    assert "run id" in refusal(FLAT)
    monkeypatch.delenv("MOSAIC_RUN_ID")
    assert parse_worker_config(FLAT).run_id != parse_worker_config(FLAT).run_id


def test_config_made_directly_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="training needs 1 or more"):
        CleanRLWorkerConfig("run", "ppo", "CartPole-v1", 0)
    with pytest.raises(ConfigError, match="run id"):
        CleanRLWorkerConfig("..", "ppo", "CartPole-v1", 10)


def test_agent_id_is_copied_and_other_unknown_keys_stay_in_raw_with_a_warning() -> None:
    config = parse_worker_config({**FLAT, "agent_id": "a", "worker_ids": 3, "zzz": 1})
    assert config.extras["agent_id"] == "a"
    assert config.raw["zzz"] == 1
    assert [line.split("'")[1] for line in config.warnings] == ["worker_ids", "zzz"]
    assert "did you mean 'worker_id'?" in config.warnings[0]


def test_overrides_win_key_by_key_and_absent_ones_change_nothing() -> None:
    base = parse_worker_config(with_extras(notes="n", algo_params={"num_envs": 2, "gamma": 0.9}))
    changed = base.with_overrides(seed=0, extras={"cuda": False, "algo_params": {"num_envs": 8}})
    assert changed.seed == 0
    assert changed.extras == {"notes": "n", "cuda": False, "algo_params": {"num_envs": 8, "gamma": 0.9}}
    assert (changed.run_id, changed.algo) == (base.run_id, base.algo)
    assert base.with_overrides() == base
    assert base.extras["algo_params"]["num_envs"] == 2


def test_overrides_fill_what_the_document_lacks() -> None:
    config = parse_worker_config({"env_id": "CartPole-v1"}, {"algo": "dqn", "total_timesteps": 5, "seed": None})
    assert (config.algo, config.total_timesteps) == ("dqn", 5)


def test_caller_keeps_its_own_copy_of_the_payload() -> None:
    payload = with_extras(algo_params={"track": True})
    parse_worker_config(payload)
    assert payload == with_extras(algo_params={"track": True})


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"mode": "trian"}, "did you mean 'train'?"),
        ({"telemetry": "all"}, "extras.telemetry: 'all' is none of off, episodes, steps"),
        ({"track_wandb": "yes"}, "extras.track_wandb: true or false is needed"),
        ({"algo_params": [1]}, "extras.algo_params: a JSON object is needed"),
        ({"grace_seconds": -1}, "extras.grace_seconds"),
        ({"grace_seconds": float("inf")}, "extras.grace_seconds"),
        ({"schema_version": "two"}, "extras.schema_version: a whole number"),
        ({"eval_batch_size": 2.5}, "extras.eval_batch_size"),
        ({"tensorboard_dir": 3}, "extras.tensorboard_dir: a text (at most 4,096 characters, no NUL) is needed"),
        ({"fastlane_video_mode": "gird"}, "did you mean 'grid'?"),
        ({"policy_path": "nowhere"}, "extras.policy_path: 'nowhere' is not there"),
        ({"checkpoint_path": "nowhere"}, "extras.checkpoint_path: 'nowhere' is not there"),
    ],
)
def test_wrong_extra_of_the_workers_own_is_refused(extras: dict[str, Any], message: str) -> None:
    assert message in refusal(with_extras(**extras))


@pytest.mark.parametrize("nothing", [None, ""])
def test_null_and_empty_text_are_as_good_as_absent(nothing: str | None) -> None:
    config = parse_worker_config(with_extras(**dict.fromkeys(EXTRAS, nothing)))
    assert (config.mode, config.algo_params) == ("train", {})


def test_the_workers_own_settings_are_found_among_the_algorithms_parameters() -> None:
    config = parse_worker_config(with_extras(algo_params={"track": True, "wandb_entity": None, "num_envs": 2}))
    assert config.extras == {"track_wandb": True, "algo_params": {"num_envs": 2}}
    config = parse_worker_config(with_extras(track_wandb=False, algo_params={"track": True}))
    assert config.extras["track_wandb"] is False


def test_extras_beat_the_environment_and_the_environment_beats_the_env_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".env").write_text("TRACK_TENSORBOARD=1\nTRACK_WANDB=1\n")
    assert parse_worker_config(FLAT).extras == {"tensorboard_dir": "tensorboard", "track_wandb": True}
    monkeypatch.setenv("TRACK_WANDB", "0")
    assert parse_worker_config(FLAT).extras == {"tensorboard_dir": "tensorboard"}
    monkeypatch.setenv("TRACK_WANDB", "1")
    assert parse_worker_config(with_extras(track_wandb=False, tensorboard_dir="tb")).extras == {
        "track_wandb": False,
        "tensorboard_dir": "tb",
    }
    monkeypatch.setenv("TRACK_WANDB", "maybe")
    assert "TRACK_WANDB='maybe'" in refusal(FLAT)


def test_total_frames_of_an_atari_algorithm_are_four_to_a_step() -> None:
    atari = {"algo": "ppo_atari_envpool", "env_id": "Pong-v5", "seed": 1}
    config = parse_worker_config({**atari, "extras": {"total_frames": 40_000}})
    assert (config.total_timesteps, config.extras) == (10_000, {})
    config = parse_worker_config({**atari, "extras": {"algo_params": {"total_frames": 40_000}}})
    assert (config.total_timesteps, config.algo_params) == (10_000, {})
    both = {**atari, "total_timesteps": 10_000, "extras": {"total_frames": 40_000}}
    assert "both given" in refusal(both)
    assert "'total_timesteps' is missing" in refusal({**atari, "algo": "ppo", "extras": {"total_frames": 40_000}})


def policy(home: Path, **sidecar: Any) -> str:
    (home / "ppo.cleanrl_model").write_bytes(b"weights")
    if sidecar:
        (home / "ppo.cleanrl_model.json").write_text(json.dumps(sidecar))
    return "ppo.cleanrl_model"


def test_evaluation_takes_what_it_leaves_out_from_the_policys_sidecar(home: Path) -> None:
    path = policy(home, algo="ppo", env_id="Acrobot-v1", seed=7, step=100)
    config = parse_worker_config({"extras": {"mode": "policy_eval", "policy_path": path}})
    assert (config.algo, config.env_id, config.seed, config.total_timesteps) == ("ppo", "Acrobot-v1", 7, 50)
    config = parse_worker_config({"env_id": "CartPole-v1", "extras": {"mode": "policy_eval", "policy_path": path}})
    assert (config.algo, config.env_id) == ("ppo", "CartPole-v1")


def test_evaluation_without_a_readable_policy_is_refused(home: Path) -> None:
    assert "needs extras.policy_path" in refusal(with_extras(mode="policy_eval"))
    assert "is not there" in refusal(with_extras(mode="policy_eval", policy_path="gone"))
    (home / "folder").mkdir()
    assert "no file" in refusal(with_extras(mode="policy_eval", policy_path="folder"))
    path = policy(home)
    assert "cannot be read as a policy" in refusal({"extras": {"mode": "policy_eval", "policy_path": path}})
    assert parse_worker_config(with_extras(mode="policy_eval", policy_path=path)).mode == "policy_eval"


@pytest.mark.parametrize("source", ["checkpoints/100", "checkpoints", "earlier"])
def test_resume_takes_what_it_leaves_open_from_the_checkpoint_its_folder_or_its_run(home: Path, source: str) -> None:
    saved = {"algo": "ppo", "args": {"env_id": "CartPole-v1", "seed": 7, "total_timesteps": 300}}
    for folder in (home / "checkpoints", RunPaths("earlier").checkpoints):
        write_checkpoint(folder, 100, saved, {})
    resume = {"mode": "resume_training", "checkpoint_path": source, "additional_timesteps": 50}
    config = parse_worker_config({"extras": resume})
    assert (config.mode, config.algo, config.env_id) == ("resume_training", "ppo", "CartPole-v1")
    assert (config.seed, config.total_timesteps) == (7, 150)
    del resume["checkpoint_path"]
    assert "needs extras.checkpoint_path" in refusal(with_extras(**resume))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": NaN}', "{'a': 1}", '"x"', "[" * 100_000])
def test_what_is_no_json_object_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--extras") as caught:
        read_object(text, "--extras")
    assert "\n" not in str(caught.value)


def test_config_file_that_cannot_be_read_is_refused(home: Path) -> None:
    (home / "latin.json").write_bytes(b'{"algo": "\xe9"}')
    for path in (home / "none.json", home, home / "latin.json"):
        with pytest.raises(ConfigError, match=r"cannot be read|plain file is needed|no valid JSON"):
            load_worker_config(path)


def test_resume_from_damaged_checkpoints_alone_is_refused(home: Path) -> None:
    path = write_checkpoint(home / "checkpoints", 100, {"algo": "ppo", "args": {}}, {})
    (path / "state.json").write_text("{")
    resume = {"mode": "resume_training", "checkpoint_path": "checkpoints"}
    assert "are damaged (100)" in refusal({"extras": resume})


def test_resume_from_nowhere_says_where_it_was_looked_for(home: Path) -> None:
    resume = {"mode": "resume_training", "checkpoint_path": "01GONE"}
    assert f"nor is it a run of {home}" in refusal({"extras": resume})


def test_warm_start_takes_what_it_leaves_open_from_the_policys_sidecar(home: Path) -> None:
    resume = {"mode": "resume_training", "checkpoint_path": policy(home, algo="ppo", args={"env_id": "CartPole-v1"})}
    assert "total_timesteps is 0" in refusal({"extras": resume})
    assert parse_worker_config({"extras": resume | {"additional_timesteps": 50}}).total_timesteps == 50
    policy(home, algo="ppo", env_id="CartPole-v1", args={"total_timesteps": 300})
    config = parse_worker_config({"extras": resume})
    assert (config.algo, config.env_id, config.total_timesteps) == ("ppo", "CartPole-v1", 300)


@pytest.mark.parametrize("gamma", ["abc", "0.9", -0.1, 1.5, True, [1]])
def test_a_discount_of_an_evaluation_that_is_none_is_refused(home: Path, gamma: Any) -> None:
    extras = {"mode": "policy_eval", "policy_path": policy(home, algo="ppo", env_id="CartPole-v1"), "gamma": gamma}
    with pytest.raises(ConfigError, match=r"extras\.gamma: a number between 0 and 1 is needed, not"):
        parse_worker_config({"extras": extras})
