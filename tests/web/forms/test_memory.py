"""What a browser keeps of a form."""

import json
from typing import Any

from mosaic.web.forms.memory import FormMemory


def test_a_form_is_found_again_as_it_was_left() -> None:
    storage: dict[str, Any] = {"dark": True}
    FormMemory(storage, "train").keep({"env_id": "A", "gpu": False}, "ppo", {"gamma": "0.9"})
    FormMemory(storage, "policy").keep({"episodes": "7"})
    assert FormMemory(storage, "train").values == {"env_id": "A", "gpu": False}
    assert (
        FormMemory(storage, "train").params("ppo") == {"gamma": "0.9"}
        and FormMemory(storage, "train").params("dqn") == {}
    )
    assert FormMemory(storage, "policy").values == {"episodes": "7"} and storage["dark"] is True
    FormMemory(storage, "train").forget()
    assert FormMemory(storage, "train").values == {} and FormMemory(storage, "policy").values


def test_each_algorithm_keeps_its_own_parameters() -> None:
    storage: dict[str, Any] = {}
    memory = FormMemory(storage, "train")
    memory.keep({}, "ppo", {"gamma": "0.9"})
    memory.keep({}, "dqn", {"tau": "0.5"})
    memory.keep({}, "dqn", {})
    assert memory.params("ppo") == {"gamma": "0.9"} and memory.params("dqn") == {}


def test_secrets_are_not_kept() -> None:
    storage: dict[str, Any] = {}
    given = {"wandb_api_key": "k" * 40, "wandb_http_proxy": "http://me:word@proxy", "wandb_https_proxy": "http://proxy"}
    typed = {"other": "telemetry=off\nhf_token=kkkk", "resources": '{"ray": {"runtime_env": {"api_key": "kkkk"}}}'}
    FormMemory(storage, "train").keep({**given, **typed})
    assert FormMemory(storage, "train").values == {"wandb_https_proxy": "http://proxy"}
    assert "kkkk" not in json.dumps(storage) and "word" not in json.dumps(storage)


def test_what_was_stored_by_another_version_is_no_trouble() -> None:
    assert FormMemory({"forms": {"train": "?"}}, "train").values == {}
