"""The ASGI app: all pages and forms behind the gate."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from nicegui import app as pages_app
from nicegui import ui
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, RedirectResponse

from mosaic.web import auth
from mosaic.web.assets import Assets
from mosaic.web.context import Web
from mosaic.web.forms import policy_page, resume_page, script_page, train_page
from mosaic.web.layout import BRAND
from mosaic.web.pages import compare, environments, play, run, runs, sweeps, system

TITLE = "MOSAIC"
TAILWIND = (Path(__file__).parent / "tailwind.js").read_text(encoding="utf-8")
# Every page and form: one module each, with its `add(web)`.
MODULES: tuple[Any, ...] = (
    *(runs, run, compare, sweeps, play, environments, system),
    *(train_page, script_page, resume_page, policy_page),
)


def build(web: Web, keeper: auth.Keeper, port: int, allow_hosts: Collection[str], storage_secret: str) -> auth.Gate:
    """Return the complete GUI as one ASGI app."""
    add_pages(web)
    ui.add_head_html(f"<script>{TAILWIND}</script>", shared=True)
    pages_app.colors(**BRAND)
    outer = FastAPI(title=TITLE, docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        outer,
        title=TITLE,
        storage_secret=storage_secret,
        # Cookies ignore the port: two homes on one machine would overwrite each other's forms.
        session_middleware_kwargs={"session_cookie": f"mosaic_forms_{port}", "same_site": "strict"},
        # Starlette's level 9 needs seven times as long for a page of curves, and saves a tenth.
        gzip_middleware_factory=partial(GZipMiddleware, compresslevel=4),
        dark=None,  # the browser's preference, from the first paint on
        tailwind=False,  # its styles are precompiled and sent with every page
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
    pages_app.on_startup(web.start)
    pages_app.on_shutdown(web.close)
    return auth.Gate(Assets(outer), keeper, port, allow_hosts, web.happenings.note)


def add_pages(web: Web) -> None:
    """Register every page; a new one is one module and one entry in MODULES."""

    @pages_app.get("/")
    def start() -> Response:
        return RedirectResponse("/runs")

    @pages_app.exception_handler(404)
    async def nothing_there(request: Request, error: Exception) -> Response:
        return HTMLResponse(auth.page("There is no such page.", "Go to the runs: /runs"), status_code=404)

    for module in MODULES:
        module.add(web)
