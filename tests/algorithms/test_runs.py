"""Every registry algorithm: the same seed gives the same numbers, the tags are CleanRL's, the policy can be read."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
from pathlib import Path

import pytest
import tiny_envs
from needs import needed

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run import policy_files, split, training
from mosaic.contract import metrics

CLEANRL = json.loads((Path(__file__).parent / "cleanrl_args.json").read_text())
SMALL_PPO = {"total_timesteps": 256, "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2}
# JAX compiles for each shape: the other tests of these files have batches of 32, too
SMALL_DQN = {"total_timesteps": 500, "learning_starts": 100, "buffer_size": 400, "batch_size": 32}
SMALL_SAC = {"env_id": "Pendulum-v1", "total_timesteps": 210, "learning_starts": 120, "buffer_size": 200}
SMALL_SAC |= {"batch_size": 32}
SMALL_CATCH = SMALL_PPO | {"env_id": "mosaic/Catch-v0", "total_timesteps": 64, "num_steps": 16, "num_threads": 1}
MULTI_CATCH = {"local_num_envs": 2, **{name: value for name, value in SMALL_CATCH.items() if name != "num_envs"}}
PONG = SMALL_PPO | {"env_id": "Pong-v5", "total_timesteps": 32, "num_steps": 8, "num_threads": 1}
PROCGEN = {"env_id": "starpilot", "total_timesteps": 32, "num_envs": 2, "num_steps": 8, "num_minibatches": 2}
PROCGEN |= {"num_threads": 1}
GRID = {"env_id": "BabyAI-GoToRedBallNoDists-v0", "mission": True, "memory": True}
SMALL_IMAGE = {"env_id": "mosaic/Catch-v0", "total_timesteps": 100, "learning_starts": 88, "batch_size": 4}
SMALL_IMAGE |= {"buffer_size": 60, "num_threads": 1}
# as all tests of JAX's image files
XLA = {"env_id": "mosaic/Catch-v0", "total_timesteps": 32, "num_envs": 2, "num_steps": 8, "num_minibatches": 2}
XLA |= {"update_epochs": 1}
TINY = {
    "ppo": SMALL_PPO,
    "ppo on grids": SMALL_PPO | GRID,
    "ppo_continuous_action": SMALL_PPO | {"env_id": "Pendulum-v1"},
    "ppo_atari_envpool": SMALL_PPO | {"env_id": "Breakout-v5", "total_timesteps": 64, "num_steps": 16},
    "ppo_atari_envpool_xla_jax": XLA,
    "ppo_atari_envpool_xla_jax_scan": XLA,
    "ppo_atari": SMALL_CATCH,
    "ppo_atari_lstm": SMALL_CATCH,
    "ppo_atari_multigpu": MULTI_CATCH,
    "dqn": SMALL_DQN,
    "dqn_jax": SMALL_DQN,
    "c51": SMALL_DQN,
    "pqn": SMALL_PPO,
    "ppo_rnd_envpool": PONG | {"num_iterations_obs_norm_init": 1},
    "ppo_procgen": PROCGEN | {"update_epochs": 2, "distribution_mode": "hard", "num_levels": 3},
    "ppg_procgen": PROCGEN | {"n_iteration": 2, "e_auxiliary": 1},
    "ppo_pettingzoo_ma_atari": PONG | {"env_id": "pong_v3"},
    "pqn_atari_envpool": PONG,
    "pqn_atari_envpool_lstm": PONG,
    "rpo_continuous_action": SMALL_PPO | {"env_id": "Pendulum-v1"},
    "sac_continuous_action": SMALL_SAC,
    "td3_continuous_action": SMALL_SAC,
    "ddpg_continuous_action": SMALL_SAC,
    "dqn_atari": SMALL_IMAGE,
    "c51_atari": SMALL_IMAGE,
    "rainbow_atari": SMALL_IMAGE,
    "sac_atari": SMALL_IMAGE,
    "qdagger_dqn_atari_impalacnn": SMALL_IMAGE | tiny_envs.small_lesson(),
    "ppo_jax": SMALL_PPO,
    "ppo_jax on gymnasium": SMALL_PPO | {"env_id": "Pendulum-v1", "env_backend": "gymnasium"},
    "dqn_atari_jax": SMALL_IMAGE,
    "c51_atari_jax": SMALL_IMAGE,
    "qdagger_dqn_atari_jax_impalacnn": SMALL_IMAGE | tiny_envs.small_lesson(offline_steps=4),
    "c51_jax": SMALL_DQN,
    "sac_continuous_action_jax": SMALL_SAC,
    "td3_continuous_action_jax": SMALL_SAC,
    "ddpg_continuous_action_jax": SMALL_SAC,
}


def test_every_algorithm_is_among_those_that_are_tried_here():
    assert {case.split()[0] for case in TINY} == set(DEFAULT_ALGO_REGISTRY)


def run(name, folder, episodes=2, **options):
    """Train; a policy that is saved is played for a few steps of so many `episodes`: whole games take minutes."""
    needed(name)
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name.split()[0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "EVAL_MAX_STEPS", 5)
        patch.setattr(training, "EVAL_EPISODES", episodes)
        # one thread: on a busy machine more of them wait for each other
        module.main(module.Args(run_dir=folder, cuda=False, **({"num_threads": 1} | TINY[name] | options)))
    return folder / "metrics.jsonl"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The rows of a training with seed 5, made once for all tests that look at it."""
    made = {}

    def rows_of(name):
        if name not in made:
            made[name] = run(name, tmp_path_factory.mktemp("run"), seed=5, exp_name="mine", save_model=True)
        return made[name]

    return rows_of


@pytest.mark.parametrize("name", TINY)
def test_the_same_seed_gives_the_same_metrics_bit_for_bit_and_another_seed_others(name, tmp_path, trained):
    first = rows_of_training(trained(name))
    assert rows_of_training(run(name, tmp_path / "again", seed=5)) == first
    assert rows_of_training(run(name, tmp_path / "other", seed=4)) != first
    assert any(b"losses/" in row for row in first)


def rows_of_training(path):
    return [row for row in metrics.comparable(path).splitlines() if b'"eval/' not in row]


@pytest.mark.parametrize("name", TINY)
def test_rows_and_policy_are_those_that_are_recorded(name, trained, frozen):
    """On another kind of machine, rounding differs: there, only which rows and which tags."""
    rows = rows_of_training(trained(name))
    (policy,) = trained(name).parent.glob("runs/*/mine.cleanrl_model")
    found = {
        "rows": [[json.loads(row)["step"], sorted(json.loads(row))] for row in rows],
        "last": json.loads(rows[-1]),
        "rows sha256": hashlib.sha256(b"".join(rows)).hexdigest(),
        "weights sha256": json.loads(policy.with_name(f"{policy.name}.json").read_text())["weights"],
        "machine": machine(),
    }
    recorded = frozen(f"rows/{name}", found)
    same = recorded["machine"] == found["machine"]
    assert found == recorded if same else found["rows"] == recorded["rows"]


def machine():
    """Return what the bits of a result depend on beside the code."""
    packages = ("torch", "numpy", "gymnasium", "jax", "flax", "optax", "envpool", "ale-py")
    versions = {
        name: importlib.metadata.version(name) for name in packages if importlib.util.find_spec(name.replace("-", "_"))
    }
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": model[0].split(":")[1].strip(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    } | versions


@pytest.mark.parametrize("name", DEFAULT_ALGO_REGISTRY)
def test_flags_and_defaults_are_cleanrl_own(name):
    ours = importlib.import_module(DEFAULT_ALGO_REGISTRY[name]).Args()
    newer = {"env_id"}  # Gymnasium's MuJoCo environments are at v5
    for flag, told in CLEANRL[name]["args"].items():
        assert hasattr(ours, flag), f"CleanRL's --{flag} is missing"
        if flag not in newer and flag != "exp_name":
            default = {"field(default_factory=lambda: [])": []}.get(str(told["default"]), told["default"])
            if isinstance(default, str) and default.startswith("int("):
                default = int(float(default.removeprefix("int(").removesuffix(")")))
            assert getattr(ours, flag) == default, flag


@pytest.mark.parametrize("name", DEFAULT_ALGO_REGISTRY)
def test_scalars_carry_cleanrl_tags(name, trained):
    rows = metrics.read_rows(trained(name))
    ours_alone = {"step", "time", "eval/episodic_return", "charts/mean_return", *split.TAGS}
    tags = {tag for row in rows for tag in row} - ours_alone
    told = set(CLEANRL[name]["scalars"]) - {"eval/episodic_return"}
    told = {tag for tag in told if not tag.endswith("{player_idx}")}  # of a whole game
    episodes = {"charts/episodic_return", "charts/episodic_length", "charts/avg_episodic_return"}
    episodes |= {"charts/episode_curiosity_reward", "charts/avg_episodic_length"}
    ours = any(part in name for part in ("pettingzoo", "xla"))  # CleanRL's have no row for each episode
    assert tags <= told | (episodes if ours else set())
    assert told - episodes <= tags, "all but those that need a whole episode"


@pytest.mark.parametrize("name", TINY)
def test_a_saved_policy_has_a_sidecar_with_all_an_evaluation_needs(name, trained):
    rows = metrics.read_rows(trained(name))
    (policy,) = trained(name).parent.glob("runs/*/mine.cleanrl_model")
    assert policy.with_name("mine.best.cleanrl_model").is_file()
    assert sum("eval/episodic_return" in row for row in rows) == 2
    sidecar = json.loads(policy.with_name("mine.cleanrl_model.json").read_text())
    assert sidecar["algo"] == name.split()[0]
    assert sidecar["seed"] == 5
    assert sidecar["env_id"] == sidecar["args"]["env_id"]
    assert sidecar["step"] >= TINY[name]["total_timesteps"]
    assert policy.parent.name.startswith(f"{sidecar['env_id'].replace('/', '-')}__mine__5__")
    assert (sidecar["observation_statistics"] is not None) == (name in NORMALISED)
    if "_jax" in name:
        from safetensors.numpy import load_file

        state = load_file(policy)
        assert f"params/{'actor/' if name.startswith('ppo_') else ''}Dense_0/kernel" in state
        assert ("qf1/Dense_0/kernel" in state) == (name in JAX_CRITICS)
    else:
        import torch

        content = torch.load(policy, weights_only=True)
        if name.startswith("c51"):
            assert set(content) == {"model_weights", "args"}
            assert content["args"]["n_atoms"] == (101 if name == "c51" else 51)
        elif name in CRITICS:
            assert isinstance(content, tuple)
            assert [set(critic) for critic in content[1:]] == CRITICS[name]
            assert all(critic["fc1.weight"].shape == (256, 3 + 1) for critic in content[1:])
        assert set(policy_files.acting_network(content)[0]) == KEYS[name]


def test_ten_episodes_close_a_training_as_in_cleanrl(tmp_path):
    rows = metrics.read_rows(run("ppo", tmp_path, episodes=training.EVAL_EPISODES, save_model=True))
    assert sum("eval/episodic_return" in row for row in rows) == 10


def layers(prefix, numbers):
    return {f"{prefix}.{number}.{part}" for number in numbers for part in ("weight", "bias")}


PARTS = ("weight", "bias")
HEADS = {f"{head}.{part}" for head in ("actor", "critic") for part in PARTS}
BLOCKS = [f"res_block{block}.conv{layer}" for block in (0, 1) for layer in (0, 1)]
RESIDUAL = layers("network", (5,)) | {
    f"network.{number}.{layer}.{part}" for number in range(3) for layer in ("conv", *BLOCKS) for part in PARTS
}
CRITIC = {f"{layer}.{part}" for layer in ("fc1", "fc2", "fc3") for part in PARTS}
ACTOR = {f"{layer}.{part}" for layer in ("fc1", "fc2", "fc_mu") for part in PARTS} | {"action_scale", "action_bias"}
HEADED = [f"{head}_head.{number}" for head in ("value", "advantage") for number in (0, 2)]
NOISY = ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma", "noise_in", "noise_out")
IMPALA = ("conv", *(f"res_block{block}.conv{number}" for block in (0, 1) for number in (0, 1)))
KEYS = {
    "ppo": layers("critic", (0, 2, 4)) | layers("actor", (0, 2, 4)),
    "ppo on grids": layers("network.convolutions", (0, 2, 4))
    | {f"{layer}.{part}" for layer in ("network.linear", "mission.phrases", "mission.channels") for part in PARTS}
    | {"mission.words.weight", *(f"memory.{part}_{of}" for part in PARTS for of in ("ih", "hh"))}
    | layers("actor", (0, 2))
    | layers("critic", (0, 2)),
    "ppo_continuous_action": layers("critic", (0, 2, 4)) | layers("actor_mean", (0, 2, 4)) | {"actor_logstd"},
    "ppo_atari_envpool": layers("network", (0, 2, 4, 7)) | HEADS,
    "ppo_atari": layers("network", (0, 2, 4, 7)) | HEADS,
    "ppo_atari_multigpu": layers("network", (0, 2, 4, 7)) | HEADS,
    "ppo_atari_lstm": layers("network", (0, 2, 4, 7))
    | HEADS
    | {f"lstm.{part}_{of}_l0" for part in PARTS for of in ("ih", "hh")},
    "rpo_continuous_action": layers("critic", (0, 2, 4)) | layers("actor_mean", (0, 2, 4)) | {"actor_logstd"},
    "dqn": layers("network", (0, 2, 4)),
    "c51": layers("network", (0, 2, 4)) | {"atoms"},
    "pqn": layers("network", (0, 1, 3, 4, 6)),
    "ppo_rnd_envpool": layers("network", (0, 2, 4, 7, 9))
    | layers("extra_layer", (0,))
    | layers("actor", (0, 2))
    | {f"critic_{of}.{part}" for of in ("ext", "int") for part in PARTS},
    "ppo_procgen": RESIDUAL | HEADS,
    "ppg_procgen": RESIDUAL | HEADS | {"aux_critic.weight", "aux_critic.bias"},
    "ppo_pettingzoo_ma_atari": layers("network", (0, 2, 4, 7)) | HEADS,
    "pqn_atari_envpool": layers("network", (0, 1, 3, 4, 6, 7, 10, 11, 13)),
    "pqn_atari_envpool_lstm": layers("network", (0, 1, 3, 4, 6, 7, 10, 11))
    | {"q_func.weight", "q_func.bias", *(f"lstm.{part}_{of}_l0" for part in PARTS for of in ("ih", "hh"))},
    "sac_continuous_action": {
        f"{layer}.{part}" for layer in ("fc1", "fc2", "fc_mean", "fc_logstd") for part in ("weight", "bias")
    }
    | {"action_scale", "action_bias"},
    "dqn_atari": layers("network", (0, 2, 4, 7, 9)),
    "c51_atari": layers("network", (0, 2, 4, 7, 9)) | {"atoms"},
    "rainbow_atari": layers("network", (0, 2, 4)) | {f"{head}.{key}" for head in HEADED for key in NOISY} | {"support"},
    "sac_atari": layers("conv", (0, 2, 4)) | {f"{layer}.{part}" for layer in ("fc1", "fc_logits") for part in PARTS},
    "qdagger_dqn_atari_impalacnn": layers("network", (5, 7))
    | {f"network.{number}.{conv}.{part}" for number in range(3) for conv in IMPALA for part in PARTS},
    "td3_continuous_action": ACTOR,
    "ddpg_continuous_action": ACTOR,
}
CRITICS = {"td3_continuous_action": [CRITIC, CRITIC], "ddpg_continuous_action": [CRITIC]}
JAX_CRITICS = ("td3_continuous_action_jax", "ddpg_continuous_action_jax")
NORMALISED = ("ppo_continuous_action", "rpo_continuous_action")
