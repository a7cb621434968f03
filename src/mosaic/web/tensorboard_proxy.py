"""`/tensorboard/{run_id}/…`: a run's TensorBoard, reachable only through this proxy, behind the sign-in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from mosaic.contract.errors import MosaicError
from mosaic.contract.paths import check_run_id
from mosaic.web.tensorboard_server import TensorBoards

# The request headers that TensorBoard may see; our cookie must not reach it.
ASKED = frozenset(("accept", "accept-encoding", "accept-language", "content-type", "range", "user-agent"))
# Response headers of the connection to TensorBoard, not of the browser's.
ITS_OWN = frozenset(("connection", "keep-alive", "transfer-encoding", "server", "date", "set-cookie"))


async def answer(boards: TensorBoards, request: Request, run_id: str, path: str) -> Response:
    """Forward one request; the first one starts the process."""
    try:
        check_run_id(run_id)
        if not path and not request.url.path.endswith("/"):
            return RedirectResponse(f"/tensorboard/{run_id}/")  # else its relative addresses would not resolve
        board = await boards.open(run_id)
        passed = board.client.build_request(
            request.method,
            httpx.URL(path=f"/{path}", query=request.url.query.encode()),
            headers={name: value for name, value in request.headers.items() if name in ASKED},
            content=await request.body() if request.method == "POST" else None,
        )
        found = await board.client.send(passed, stream=True)
    except MosaicError as error:
        return PlainTextResponse(str(error), 404)
    except httpx.HTTPError:
        boards.touch(run_id)
        return PlainTextResponse("TensorBoard does not answer; reload the page to start it again.", 502)
    headers = {name: value for name, value in found.headers.items() if name.lower() not in ITS_OWN}
    if not path and headers.get("content-encoding", "identity") == "identity":
        # its fonts alone have absolute addresses
        headers.pop("content-length", None)
        page = (await found.aread()).replace(b"url(/font-roboto/", b"url(font-roboto/")
        await found.aclose()
        return Response(page, found.status_code, headers)
    return StreamingResponse(_body(found), found.status_code, headers)


async def _body(found: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the raw bytes, compressed or not."""
    try:
        async for part in found.aiter_raw():
            yield part
    finally:
        await found.aclose()
