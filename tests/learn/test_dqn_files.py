"""Policy files of torch and of flax, read and translated without either."""

import io
import subprocess
import sys
from collections import OrderedDict

from cleanrl_worker.nets.jax.trees import tree_of

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from cleanrl_worker.learn import dqn_files
from cleanrl_worker.run import policy_files as policies


def nature(rng):
    shapes = {0: (32, 4, 8, 8), 2: (64, 32, 4, 4), 4: (64, 64, 3, 3), 7: (512, 3136), 9: (3, 512)}
    return {f"network.{number}.weight": array(rng, *shape) for number, shape in shapes.items()} | {
        f"network.{number}.bias": array(rng, shape[0]) for number, shape in shapes.items()
    }


def impala(rng):
    found, inputs = {}, 4
    for number, channels in enumerate((16, 32, 32)):
        found[f"network.{number}.conv.weight"] = array(rng, channels, inputs, 3, 3)
        found[f"network.{number}.conv.bias"] = array(rng, channels)
        for layer in ("res_block0.conv0", "res_block0.conv1", "res_block1.conv0", "res_block1.conv1"):
            found[f"network.{number}.{layer}.weight"] = array(rng, channels, channels, 3, 3)
            found[f"network.{number}.{layer}.bias"] = array(rng, channels)
        inputs = channels
    for number, shape in {5: (256, 32 * 11 * 11), 7: (3, 256)}.items():
        found |= {f"network.{number}.weight": array(rng, *shape), f"network.{number}.bias": array(rng, shape[0])}
    return found


def array(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def same(found, expected):
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("made", [nature, impala])
def test_the_files_of_torch_safetensors_and_flax_hold_the_same_weights(made):
    from flax.serialization import to_bytes

    state, file = made(np.random.default_rng(0)), io.BytesIO()
    tensors = OrderedDict((name, torch.from_numpy(value)) for name, value in state.items())
    tensors._metadata = OrderedDict(version=1)  # as a module's state dict has it
    torch.save(tensors, file)
    same(dqn_files.read(file.getvalue()), state)
    same(dqn_files.read(save(state)), state)
    in_flax = dqn_files.as_flax(state)
    same(dqn_files.read(to_bytes(tree_of(in_flax))), in_flax)
    same(dqn_files.as_torch(in_flax), state)
    assert dqn_files.is_flax(in_flax) and not dqn_files.is_flax(state)


def test_a_file_of_torch_is_read_without_it(tmp_path):
    torch.save({"weight": torch.arange(6.0).reshape(2, 3).T}, tmp_path / "x")
    code = "import sys; from pathlib import Path; from cleanrl_worker.learn import dqn_files; "
    code += "found = dqn_files.read(Path(sys.argv[1]).read_bytes()); "
    code += "print(found['weight'].tolist(), {'torch', 'jax'} & {*sys.modules})"
    command = [sys.executable, "-c", code, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout == "[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] set()\n"


class Hostile:
    """Unpickled without care it runs what it likes."""

    def __reduce__(self):
        return print, ("it ran",)


def damaged(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK not quite",
        b"\x80\x04 nor this",
        b"\xc1",
        damaged({"weight": Hostile()}),
        damaged({"weight": torch.zeros(3)})[:-200],
        damaged([1, 2]),
        damaged({"model": {"weight": torch.zeros(3)}}),
    ],
)
def test_damaged_and_hostile_files_are_refused_and_nothing_in_them_runs(data, capsys):
    with pytest.raises(policies.UNREADABLE):
        dqn_files.layers_of(dqn_files.read(data))
    assert capsys.readouterr().out == ""
