"""Where W&B's key comes from, and who gets it."""

from pathlib import Path

from cleanrl_worker.telemetry.wandb_keys import find_key, is_logged_in, wandb_variables, with_key, without_key

KEY = "0123456789abcdef0123456789abcdef01234567"


def test_key_is_found_in_the_order_of_nearness(home: Path) -> None:
    assert find_key({}, home) is None
    (home / ".env").write_text("WANDB_API_KEY=from-dotenv\n")
    assert find_key({}, home) == "from-dotenv"
    assert find_key({"WANDB_API_KEY": "near"}, home) == "near"


def test_login_is_found_in_netrc(home: Path, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    netrc.chmod(0o600)
    assert not is_logged_in({})
    assert is_logged_in({"NETRC": str(netrc)})
    assert not is_logged_in({"NETRC": str(netrc), "WANDB_BASE_URL": "https://wandb.lab.org"})


def test_script_that_tracks_itself_gets_the_key_or_stays_offline(home: Path) -> None:
    assert with_key({"A": "b"}, home) == {"A": "b", "WANDB_MODE": "offline"}
    (home / ".env").write_text(f"WANDB_API_KEY={KEY}\n")
    assert with_key({"A": "b"}, home) == {"A": "b", "WANDB_API_KEY": KEY}
    assert without_key({"A": "b", "WANDB_API_KEY": KEY}) == {"A": "b"}


def test_proxies_and_email_become_variables() -> None:
    extras = {"wandb_use_vpn_proxy": True, "wandb_https_proxy": "http://p:1", "wandb_email": "me@lab.org"}
    assert wandb_variables(extras, {"NO_PROXY": "intranet,localhost"}) == {
        "WANDB_EMAIL": "me@lab.org",
        "HTTPS_PROXY": "http://p:1",
        "https_proxy": "http://p:1",
        "NO_PROXY": "intranet,localhost,127.0.0.1,::1",
        "no_proxy": "intranet,localhost,127.0.0.1,::1",
    }
    masked = {**extras, "wandb_https_proxy": "http://***@p:1"}
    assert wandb_variables(masked, {"HTTPS_PROXY": "http://me:pw@p:1"})["HTTPS_PROXY"] == "http://me:pw@p:1"
    assert wandb_variables(extras, {"HTTPS_PROXY": "http://me:pw@q:1"})["HTTPS_PROXY"] == "http://p:1"
    assert wandb_variables({**extras, "wandb_use_vpn_proxy": False, "wandb_email": ""}, {}) == {}
