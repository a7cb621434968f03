"""Names that hold secrets, and copies of a payload without them (no pydantic: the worker's shell needs this too)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError

SECRET_NAMES = ("API_KEY", "TOKEN", "SECRET", "PASSWORD")
"""A name that contains one of these, in any case, holds a secret."""

PROXIES = {"wandb_http_proxy": variables.HTTP_PROXY, "wandb_https_proxy": variables.HTTPS_PROXY}
"""The extras that may hold a login, and the variable that passes them to the worker unmasked."""

MASK = "***"
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
# In a source or a settings file: NAME = "…", "name": '…', NAME=abc123 (eight characters or more, a digit among them).
_ASSIGNED = re.compile(
    r"""(?P<name>[\w.-]*(?:API[_-]?KEY|TOKEN|SECRET|PASSWORD)[\w.-]*["'\]]*\s*(?::[^=\n]{0,40})?[:=]\s*)"""
    r"""(?P<value>"[^"\n]+"|'[^'\n]+'|(?=[^\s"']*\d)[\w./+=-]{8,}(?![\w(\[.]))""",
    re.IGNORECASE,
)
# Keys with a recognizable prefix: GitHub, Hugging Face, OpenAI, Slack, AWS.
_KEY_SHAPES = re.compile(r"\b(?:gh[pousr]_|github_pat_|hf_|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,}")


def is_secret(name: str) -> bool:
    """Return True if a variable or key of this name holds a secret."""
    upper = name.upper().replace("-", "_")
    return any(secret in upper for secret in SECRET_NAMES)


def without_secrets(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy without the secret variables of its `environment` and the logins of URLs, to store on disk."""
    kept = dict(payload)
    environment = kept.get("environment")
    if isinstance(environment, Mapping):
        kept["environment"] = {name: value for name, value in environment.items() if not is_secret(str(name))}
    return dict(_masked(kept, lambda name: False))


def mask_secrets(value: Any) -> Any:
    """Return a deep copy with secret values and the logins of URLs masked as *** at every level, to display."""
    return _masked(value, is_secret)


def mask_flag(flag: str) -> str:
    """Return a command's `--name=value` with *** for a secret value."""
    name, equals, _ = flag.partition("=")
    return f"{name}={MASK}" if equals and is_secret(name.lstrip("-")) else str(mask_secrets(flag))


def mask_text(text: str, values: Sequence[str] = ()) -> str:
    """Return a source, a diff or another text with these values, assigned keys and logins of URLs masked."""
    for value in values:
        text = text.replace(value, MASK)
    text = _ASSIGNED.sub(_masked_assignment, text)
    return _KEY_SHAPES.sub(MASK, _URL_LOGIN.sub(MASK, text))


def proxy_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the proxies whose logins the config's files leave out; refuse any other login."""
    extras = _object(config.get("extras"))
    for key, value in {**config, **extras, **_object(extras.get("algo_params"))}.items():
        if key not in ("extras", "algo_params", *PROXIES) and mask_secrets(value) != value:
            raise ConfigError(f"{key} holds a login or another secret, which must not lie in a file: leave it out")
    if not extras.get("wandb_use_vpn_proxy"):
        return {}
    return {variable: extras[key] for key, variable in PROXIES.items() if isinstance(extras.get(key), str)}


def _masked_assignment(found: re.Match[str]) -> str:
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['name']}{quote}{MASK}{quote}"


def _object(value: object) -> Mapping[str, Any]:
    """Return an object unchanged, {} for any other value, which the worker refuses."""
    return value if isinstance(value, Mapping) else {}


def _masked(value: Any, hidden: Callable[[str], bool]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: MASK if isinstance(key, str) and hidden(key) else _masked(item, hidden) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(item, hidden) for item in value]
    if isinstance(value, str):
        return _URL_LOGIN.sub(MASK, value)
    return copy.deepcopy(value)
