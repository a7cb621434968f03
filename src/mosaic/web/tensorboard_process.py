"""The process of a run's TensorBoard: `python -m mosaic.web.tensorboard_process LOGDIR SOCKET`.

It listens only on a Unix socket, in a folder that only its owner can enter, and ends with its standard input: however
the web process dies, no TensorBoard is left behind.
"""

from __future__ import annotations

import os
import sys
from typing import Any

READY = "ready"


def main(logdir: str, socket: str) -> None:
    """Serve until standard input ends."""
    from tensorboard import default, program
    from werkzeug.serving import make_server

    class SocketServer:
        """The server interface that TensorBoard expects, on a Unix socket."""

        def __init__(self, app: Any, flags: Any) -> None:
            self._server = make_server(f"unix://{socket}", 0, app, threaded=True)

        def serve_forever(self) -> None:
            self._server.serve_forever()

        def get_url(self) -> str:
            return f"unix://{socket}"

    board = program.TensorBoard(plugins=default.get_plugins(), server_class=SocketServer)
    # The files are read in Python: the fast reader is another process and another open port. A run's folder is small,
    # so it is reloaded often; several files of one run (of a resumption) are followed at once.
    board.configure(
        argv=[
            "tensorboard",
            f"--logdir={logdir}",
            "--load_fast=false",
            "--reload_interval=5",
            "--reload_multifile=true",
        ]
    )
    board.launch()
    print(READY, flush=True)
    sys.stdin.read()
    os._exit(0)  # its threads block in reads that never end


if __name__ == "__main__":
    main(*sys.argv[1:3])
