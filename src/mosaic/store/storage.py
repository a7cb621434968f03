"""Storage: objects under a URL (file://, s3://, …), read and written by name; only this module imports fsspec.

Credentials come from the environment or from the files of the cloud's own tools, never from the URL.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, StoreError, nearest, shown
from mosaic.contract.extras import EXTRA_OF, pip_line
from mosaic.contract.fields import CHUNK_BYTES
from mosaic.contract.secrets import mask_secrets

# Scheme -> the package that fsspec needs for it.
SCHEMES = {"file": "fsspec", "s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
# An object store writes an object atomically; in a folder, a temporary file is written and renamed.
_FOLDERS = ("file",)
OFF = "none"
"""disables storage in the daemon's settings"""
_EXAMPLES = "file:///mnt/lab/runs or s3://bucket/folder"
_PROBE = ".mosaic-write-test"
# Notice an unreachable store within seconds: a person or the end of a run is waiting.
_S3 = {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}
_OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"auto_mkdir": True},
    "s3": {"config_kwargs": _S3},
}


class MissingError(StoreError):
    """An object that does not exist."""


class AwayError(StoreError):
    """A store that does not answer now, but may later."""


def check_url(url: object, what: str = "storage_url") -> str:
    """Return the URL without a trailing slash; raise ConfigError if it is invalid. Does not contact the store."""
    text = url.strip() if isinstance(url, str) else ""
    scheme, mark, rest = text.partition("://")
    if not mark:
        raise ConfigError(f"{what}: {shown(mask_secrets(url))} is no URL; give one such as {_EXAMPLES}")
    if "@" in rest.partition("/")[0] or re.search("[?#]", rest):
        raise ConfigError(
            f"{what}: a {scheme}:// URL with a login or parameters is refused; give only {scheme}://…/folder, and the "
            "credentials in the environment (AWS_ACCESS_KEY_ID, …) or in the files of the cloud's own tools"
        )
    if scheme not in SCHEMES:
        near = nearest(scheme, SCHEMES) or f"; {', '.join(f'{name}://' for name in SCHEMES)} are known"
        raise ConfigError(f"{what}: {shown(text)} has the unknown scheme {scheme!r}{near}")
    parts = rest.strip("/").split("/")
    if (scheme in _FOLDERS) != rest.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ConfigError(f"{what}: {shown(text)} names no folder; give one such as {_EXAMPLES}")
    package = SCHEMES[scheme]
    if find_spec(package) is None:
        line = pip_line(package) if package in EXTRA_OF else f"pip install {package}"
        raise ConfigError(f"{what}: {scheme}:// needs {package}, which is not installed: {line}")
    return text.rstrip("/")


def default_url(home: Path) -> str:
    """Return a home's default storage URL: MOSAIC_STORAGE_URL of the environment or `.env`; "" if unset or off."""
    name = variables.MOSAIC_STORAGE_URL
    found = os.environ.get(name) or variables.read_dotenv(home).get(name) or ""
    return "" if found.strip().lower() == OFF else found.strip()


class Storage:
    """Objects under a URL, by names with forward slashes. Failures raise StoreError."""

    def __init__(self, url: str) -> None:
        self.url = check_url(url)
        scheme = self.url.partition("://")[0]
        self._in_folder = scheme in _FOLDERS
        with self._answered("open"):
            import fsspec

            # Never cache listings: another machine may write in the meantime.
            options = {"use_listings_cache": False, "skip_instance_cache": True, **_OPTIONS.get(scheme, {})}
            self._files = fsspec.filesystem(scheme, **options)
            self._root = str(self._files._strip_protocol(self.url)).rstrip("/")

    def check(self) -> None:
        """Write and remove a small object; raise ConfigError if that is refused, AwayError if it does not answer."""
        try:
            self.write(_PROBE, b"mosaic")
        except MissingError:
            bucket = self._root.partition("/")[0]
            raise ConfigError(
                f"storage_url {self.url}: there is no bucket {bucket!r}; create it, or name another"
            ) from None
        except AwayError:
            raise
        except StoreError as error:
            raise ConfigError(f"storage_url {error}") from None
        with contextlib.suppress(StoreError):  # no permission to delete: old checkpoints stay there
            self.remove([_PROBE])

    def write(self, name: str, data: bytes) -> None:
        """Write an object atomically: a reader sees the old content or the new."""
        path = self._path(name)
        with self._answered(f"write {name}"):
            if not self._in_folder:
                self._files.pipe_file(path, data)
                return
            folder, _, last = path.rpartition("/")
            beside = f"{folder}/.{last}.{os.urandom(4).hex()}"
            self._files.pipe_file(beside, data)
            self._files.mv(beside, path)

    def read(self, name: str) -> bytes:
        """Return an object's first bytes, at most CHUNK_BYTES + 1; raise MissingError if it does not exist."""
        with self._answered(f"read {name}"):
            return bytes(self._files.cat_file(self._path(name), start=0, end=CHUNK_BYTES + 1))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return every object below a folder with its size, including temporary files of a killed writer."""
        with self._answered(f"list {prefix}"):
            found = self._files.find(self._path(prefix), detail=True)
        start = len(self._root) + 1
        return {str(path)[start:]: int(about.get("size") or 0) for path, about in found.items()}

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; missing ones are ignored."""
        for name in names:
            with contextlib.suppress(MissingError), self._answered(f"remove {name}"):
                self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        """Convert exceptions of a store's package to one-line StoreErrors; each package defines its own."""
        try:
            yield
        except FileNotFoundError as error:
            raise MissingError(f"{self.url}: cannot {what}: it is not there") from error
        except Exception as error:
            kind = AwayError if _AWAY & {base.__name__ for base in type(error).__mro__} else StoreError
            raise kind(f"{self.url}: cannot {what}: {_reason(error)}") from error


# By name, because no store's package is imported here.
_AWAY = {"EndpointConnectionError", "HTTPClientError", "ConnectionError", "TimeoutError", "ClientConnectionError"}
_REASONS = {
    "PermissionError": "no permission; check the credentials in the environment, and what they allow",
    "NoCredentialsError": "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`",
    "PartialCredentialsError": "half of the credentials are missing; set both AWS_ACCESS_KEY_ID and its secret",
    "EndpointConnectionError": "the server does not answer; check the network and AWS_ENDPOINT_URL",
    "HTTPClientError": "the server does not answer; check the network and AWS_ENDPOINT_URL",
}


def _reason(error: Exception) -> str:
    """Return the reason in one line, secrets masked."""
    for known in type(error).__mro__:
        if known.__name__ in _REASONS:
            return _REASONS[known.__name__]
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    return shown(mask_secrets(" ".join(text.split())), 200).strip("'\"")
