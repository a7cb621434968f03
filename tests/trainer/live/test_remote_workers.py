"""The files of a distant run: what is sent to a node on which it continues."""

from pathlib import Path

import pytest

from mosaic.contract.paths import RunPaths
from mosaic.trainer.live.remote_workers import CHUNK_BYTES, kept_lines


@pytest.mark.parametrize("torn", [b"", b'{"cut'])
def test_files_are_sent_as_they_are_to_the_last_whole_line_in_small_pieces(tmp_path: Path, torn: bytes) -> None:
    paths = RunPaths("a", tmp_path)
    paths.create()
    rows = b"1\n" + b"x" * (3 * CHUNK_BYTES) + b"\n2\n"
    paths.metrics.write_bytes(rows + torn)
    paths.events.write_bytes(b"e\n" + torn)
    chunks = list(kept_lines(paths))
    assert b"".join(chunk.data for chunk in chunks if chunk.path == "metrics.jsonl") == rows
    assert b"".join(chunk.data for chunk in chunks if chunk.path.endswith("worker.jsonl")) == b"e\n"
    assert max(len(chunk.data) for chunk in chunks) <= CHUNK_BYTES and len(chunks) == 5
