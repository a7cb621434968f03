"""What a node's environment must have in common with the daemon's."""

from mosaic.trainer.executors.versions import differences, present


def test_the_same_environment_differs_in_nothing() -> None:
    assert differences(present()) is None


def test_another_version_is_told_beside_the_one_that_was_wanted() -> None:
    here = present()
    wanted = here | {"numpy": "0.1", "torch": "none"}
    assert differences(wanted) == (f"torch {here['torch']}, numpy {here['numpy']}", "torch none, numpy 0.1")
