"""Form memory: a form's content stays with the browser after the page is left; secrets do not."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from mosaic.contract.secrets import is_secret, mask_secrets
from mosaic.web.forms.own_rows import SECRET

_PLACE = "forms"


class FormMemory:
    """One form's content in one browser's storage: fields by name, and each algorithm's parameters by name."""

    def __init__(self, storage: MutableMapping[str, Any], form: str) -> None:
        self._storage, self._form = storage, form

    @property
    def values(self) -> dict[str, Any]:
        return dict(self._content().get("values") or {})

    def params(self, algo: str) -> dict[str, Any]:
        """Return the changed parameters of this algorithm."""
        return dict((self._content().get("params") or {}).get(algo) or {})

    def keep(self, values: Mapping[str, Any], algo: str = "", params: Mapping[str, Any] | None = None) -> None:
        """Store the content; a parameter back at its default is dropped."""
        content = self._content()
        kept = {**(content.get("params") or {})}
        if algo:
            kept[algo] = dict(params or {})
        self._put({"values": {name: one for name, one in values.items() if may_be_kept(name, one)}, "params": kept})

    def forget(self) -> None:
        """Clear the form's content."""
        self._put({})

    def _content(self) -> dict[str, Any]:
        found = self._storage.get(_PLACE, {}).get(self._form, {})
        return dict(found) if isinstance(found, Mapping) else {}

    def _put(self, content: dict[str, Any]) -> None:
        self._storage[_PLACE] = {**self._storage.get(_PLACE, {}), self._form: content}


def may_be_kept(name: str, value: Any) -> bool:
    """Return True unless the value holds a key, an address with a login, or a setting that looks like a key."""
    if name == "other" and any(is_secret(line.partition("=")[0]) for line in str(value).splitlines()):
        return False
    if name == "resources" and any(map(is_secret, re.findall(r"[\w-]+", str(value)))):
        return False
    return name != SECRET and not is_secret(name) and mask_secrets(value) == value
