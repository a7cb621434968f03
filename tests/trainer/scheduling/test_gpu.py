"""Admission on machines that this one is not."""

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.trainer.scheduling.gpu import Claim, Gpu, Machine, Room, check_claim, find_gpus

TWO = Machine(tuple(Gpu(index, "H200", 1 << 37) for index in range(2)), cpu_slots=4.0, memory_mb=1000)
NONE = Machine((), cpu_slots=4.0, memory_mb=1000)


def test_gpus_are_given_whole_and_come_back() -> None:
    room = Room.beside(TWO, [(Claim(gpus=1), [0])])
    assert room.grant(Claim(gpus=1)) == [1]
    assert room.grant(Claim(gpus=1)) is None, "a busy one is waited for, an optional one too"
    assert room.grant(Claim(gpus=1, gpus_mandatory=True)) is None
    assert room.grant(Claim(gpus=3)) == [], "an optional one that the machine lacks means the CPU"
    assert Room.beside(TWO, []).grant(Claim(gpus=2, gpus_mandatory=True)) == [0, 1]


def test_who_waits_for_a_gpu_is_passed_by_those_who_need_none_and_by_nobody_else() -> None:
    room = Room.beside(TWO, [(Claim(gpus=1), [1])])
    assert room.grant(Claim(gpus=2, gpus_mandatory=True)) is None
    assert room.grant(Claim(gpus=1, gpus_mandatory=True)) is None, "the free one is kept for the first"
    assert room.grant(Claim()) == []


def test_who_waits_for_cores_or_memory_is_passed_by_nobody() -> None:
    room = Room.beside(TWO, [(Claim(cpus=3.0), [])])
    assert room.grant(Claim(cpus=2.0)) is None and room.grant(Claim(cpus=1.0)) is None
    room = Room.beside(TWO, [(Claim(memory_mb=900), [])])
    assert room.grant(Claim(memory_mb=200)) is None and room.grant(Claim()) is None


def test_an_evaluation_takes_a_slot_of_its_own_and_waits_for_no_training() -> None:
    one = Claim(evaluates=True)
    room = Room.beside(TWO, [(Claim(cpus=4.0, gpus=2), [0, 1])])
    assert room.grant(Claim()) is None
    assert room.grant(Claim(gpus=1, evaluates=True)) == [], "a busy GPU is not waited for"
    assert room.grant(one) is None, "there is one slot"
    assert Room.beside(TWO, [(one, [])]).grant(one) is None
    assert Room.beside(TWO, [(one, [])]).grant(Claim(cpus=4.0)) == [], "it takes no CPU slot"
    three = Room.beside(Machine((), 4.0, 1000, eval_slots=3), [(one, [])])
    assert [three.grant(one) for _ in range(3)] == [[], [], None]


def test_fractions_of_cores_add_up() -> None:
    room = Room.beside(Machine((), 1.0, 0), [])
    assert all(room.grant(Claim(cpus=0.1)) == [] for _ in range(10))
    assert room.grant(Claim(cpus=0.1)) is None


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (Claim(cpus=5.0), "this daemon has 4 slots"),
        (Claim(memory_mb=1001), "this machine has 1000"),
        (Claim(gpus=3, gpus_mandatory=True), "3 asked for, 2 on this machine"),
    ],
)
def test_what_a_machine_can_never_give_is_refused(claim: Claim, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_claim(claim, TWO)


def test_an_optional_gpu_is_replaced_with_a_warning() -> None:
    assert check_claim(Claim(gpus=1), TWO) == []
    assert "trains on the CPU" in check_claim(Claim(gpus=1), NONE)[0]


def test_a_machine_without_the_library_has_no_gpus() -> None:
    assert all(isinstance(gpu, Gpu) for gpu in find_gpus())
    assert Machine.found(3.0).cpu_slots == 3.0 and Machine.found().memory_mb > 0
