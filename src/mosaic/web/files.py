"""A run's files for the browser: `/files/{run_id}/{path}`, confined to the run's folder, with ranges for videos."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from starlette.responses import FileResponse, PlainTextResponse, Response

from mosaic.contract.errors import ConfigError, StorageError, StoreError, shown
from mosaic.contract.paths import RunPaths
from mosaic.store.stored import ensure

# Types that a browser may display inline. Everything else, above all a page or a drawing that could hold a script, is
# only downloaded.
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
    """Return the file that an address names; ConfigError for one that could lie outside, in any spelling."""
    spelled = relative
    for _ in range(4):  # an address encoded twice is decoded once by the server, and again by mistake
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
    """Return the response for a run's file; 404 does not distinguish a refused from a missing one."""
    try:
        path = find_file(RunPaths(run_id, home), relative)
        status = path.stat()
    except (StoreError, StorageError) as error:
        return PlainTextResponse(f"The file cannot be fetched: {error}", 502, headers=HEADERS)
    except (ConfigError, OSError):
        return PlainTextResponse("There is no such file of this run.", 404, headers=HEADERS)
    media_type = SHOWN.get(path.suffix.lower())
    # Videos and weights are already compressed; compressed again, a range would no longer match the requested bytes.
    plain = {} if media_type and media_type.startswith("text/") else {"Content-Encoding": "identity"}
    return FileResponse(
        path,
        media_type=media_type or "application/octet-stream",
        headers={**HEADERS, **plain},
        filename=path.name,
        content_disposition_type="attachment" if download or media_type is None else "inline",
        stat_result=status,
    )
