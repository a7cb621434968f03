"""Secrets: which names hold them, and copies without them."""

from __future__ import annotations

import pytest

from mosaic.contract import job
from mosaic.contract.secrets import is_secret, mask_secrets, mask_text, without_secrets


@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "wandb_api_key", "api-key", "HF_TOKEN", "token", "AWS_SECRET_ACCESS", "Password"]
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["WANDB_EMAIL", "MUJOCO_GL", "key", "learning_rate", ""])
def test_other_names_hold_no_secret(name: str) -> None:
    assert not is_secret(name)


def test_what_may_lie_on_disk_has_no_secret_variable_and_the_original_keeps_it() -> None:
    payload = {"environment": {"WANDB_API_KEY": "k", "A": "1"}, "metadata": {"worker": {"config": {"num_tokens": 5}}}}
    kept = without_secrets(payload)
    assert kept == {"environment": {"A": "1"}, "metadata": {"worker": {"config": {"num_tokens": 5}}}}
    assert payload["environment"] == {"WANDB_API_KEY": "k", "A": "1"}
    kept["metadata"]["worker"]["config"]["num_tokens"] = 6
    assert payload["metadata"] == {"worker": {"config": {"num_tokens": 5}}}
    assert without_secrets({"algo": "ppo"}) == {"algo": "ppo"}
    assert without_secrets({"environment": None}) == {"environment": None}
    proxied = {"extras": {"wandb_https_proxy": "http://me:k@proxy:3128", "hidden": ["ftp://me:k@host/x"]}}
    assert without_secrets(proxied) == {
        "extras": {"wandb_https_proxy": "http://***@proxy:3128", "hidden": ["ftp://***@host/x"]}
    }


def test_what_may_be_shown_has_no_secret_at_any_level() -> None:
    shown = mask_secrets(
        {
            "environment": {"WANDB_API_KEY": "k1", "A": "1"},
            "list": [{"token": "k2"}, ("x", {"deep": {"password": {"inner": "k3"}}})],
            "proxy": "http://me:k4@proxy:3128/path",
            "mail": "me@example.org",
            "number": 3,
        }
    )
    assert shown == {
        "environment": {"WANDB_API_KEY": "***", "A": "1"},
        "list": [{"token": "***"}, ["x", {"deep": {"password": "***"}}]],
        "proxy": "http://***@proxy:3128/path",
        "mail": "me@example.org",
        "number": 3,
    }


def test_the_job_module_offers_the_same_names() -> None:
    assert job.is_secret is is_secret and job.mask_secrets is mask_secrets and job.without_secrets is without_secrets


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('api_key = "abc"', 'api_key = "***"'),
        ("WANDB_API_KEY=abcdef12345", "WANDB_API_KEY=***"),
        ("{'hf_token': 'x y'}", "{'hf_token': '***'}"),
        ("password: str = 'p'", "password: str = '***'"),
        ("token = tokenizer(x1)", "token = tokenizer(x1)"),
        ("max_tokens: int = 4096", "max_tokens: int = 4096"),
        ("git clone https://me:pw@host/x", "git clone https://***@host/x"),
        ("use ghp_abcdefghijklmnop1234", "use ***"),
        ("a known-value here", "a *** here"),
    ],
)
def test_known_values_and_assigned_keys_are_masked_in_a_text(text: str, masked: str) -> None:
    assert mask_text(text, ["known-value"]) == masked
