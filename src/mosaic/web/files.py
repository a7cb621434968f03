"""A run's files for the browser: `/files/{run_id}/{path}`, contained in the run's folder, with ranges for videos."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from starlette.responses import FileResponse, PlainTextResponse, Response

from mosaic.contract.errors import ConfigError, StorageError, StoreError, shown
from mosaic.contract.paths import RunPaths
from mosaic.store.stored import ensure

# What a browser may show by itself. Everything else, a page or a drawing that could hold a script above all, is
# only ever downloaded.
SHOWN = {
    **{".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png", ".jpg": "image/jpeg"},
    **dict.fromkeys((".txt", ".log", ".json", ".jsonl", ".csv", ".md", ".yaml", ".toml"), "text/plain; charset=utf-8"),
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; media-src 'self'; img-src 'self'",
    "Cache-Control": "private, no-cache",
}


def find_file(paths: RunPaths, relative: str) -> Path:
    """The file that an address names; ConfigError for one that could lie elsewhere, however it is spelled."""
    spelled = relative
    for _ in range(4):  # an address that was encoded twice is decoded once by the server, and once more by a mistake
        decoded = unquote(spelled)
        if decoded == spelled:
            break
        spelled = decoded
    for text in {relative, spelled}:
        parts = text.split("/")
        if "\\" in text or "\0" in text or any(part in ("", ".", "..") for part in parts):
            raise ConfigError(
                f"path {shown(relative)} is refused: give one inside the run's folder, such as logs/cleanrl.stdout.log"
            )
    if relative == paths.config_file.name:
        return paths.config_file
    found = paths.inside(relative)
    ensure(found, paths.home)
    if not found.is_file():
        raise FileNotFoundError(f"run {paths.run_id} has no file {shown(relative)}")
    return found


def file_response(home: Path, run_id: str, relative: str, *, download: bool = False) -> Response:
    """The answer to a request for a run's file; 404 says the same of what is refused and what is not there."""
    try:
        path = find_file(RunPaths(run_id, home), relative)
        status = path.stat()
    except (StoreError, StorageError) as error:
        return PlainTextResponse(f"The file cannot be fetched: {error}", 502, headers=HEADERS)
    except (ConfigError, OSError):
        return PlainTextResponse("There is no such file of this run.", 404, headers=HEADERS)
    media_type = SHOWN.get(path.suffix.lower())
    # Films and weights are packed already; packed anew, a part of one would no longer be the part that was asked for.
    plain = {} if media_type and media_type.startswith("text/") else {"Content-Encoding": "identity"}
    return FileResponse(
        path,
        media_type=media_type or "application/octet-stream",
        headers={**HEADERS, **plain},
        filename=path.name,
        content_disposition_type="attachment" if download or media_type is None else "inline",
        stat_result=status,
    )
