"""Lookup and distribution of W&B's key, login, e-mail and proxies."""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError
from mosaic.contract.secrets import mask_secrets

DEFAULT_SERVER = "https://api.wandb.ai"


def wandb_variables(extras: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the e-mail and HTTP(S)_PROXY from the extras, with localhost exempt from the proxy.

    A proxy whose login the config masks is read unmasked from the environment.
    """
    email = {variables.WANDB_EMAIL: str(extras["wandb_email"])} if extras.get("wandb_email") else {}
    asked = {
        variables.HTTP_PROXY: extras.get("wandb_http_proxy"),
        variables.HTTPS_PROXY: extras.get("wandb_https_proxy"),
    }
    proxies = {name: str(value) for name, value in asked.items() if value and extras.get("wandb_use_vpn_proxy")}
    proxies |= {name: inherited[name] for name in proxies if mask_secrets(inherited.get(name)) == proxies[name]}
    if proxies:
        exempt = [host for host in inherited.get(variables.NO_PROXY, "").split(",") if host]
        exempt += [host for host in ("localhost", "127.0.0.1", "::1") if host not in exempt]
        proxies[variables.NO_PROXY] = ",".join(exempt)
    # Some programs read only the lower-case names.
    return {**email, **proxies, **{name.lower(): value for name, value in proxies.items()}}


def with_key(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the variables of a script that tracks itself: with the key, else offline, so that it never prompts."""
    key = find_key(environment, home)
    if key:
        return {**environment, variables.WANDB_API_KEY: key}
    return dict(environment) if is_logged_in(environment) else {variables.WANDB_MODE: "offline", **environment}


def without_key(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the W&B key, for an algorithm that does not need it."""
    return {name: value for name, value in environment.items() if name != variables.WANDB_API_KEY}


def find_key(environment: Mapping[str, str], home: Path) -> str | None:
    """Return the W&B key from the environment or `.env`."""
    return environment.get(variables.WANDB_API_KEY) or _dotenv(home).get(variables.WANDB_API_KEY) or None


def is_logged_in(environment: Mapping[str, str]) -> bool:
    """Return True if an earlier `wandb login` left a key that W&B finds by itself."""
    if environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(environment.get("WANDB_BASE_URL") or DEFAULT_SERVER).netloc
    homes = [Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser()]
    for path in [Path(environment["NETRC"])] if environment.get("NETRC") else homes:
        try:
            if netrc.netrc(path).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _dotenv(home: Path) -> dict[str, str]:
    try:
        return variables.read_dotenv(home)
    except ConfigError:
        return {}
