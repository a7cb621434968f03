"""The TensorBoard tab: the original, in a process that lives while a user views it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import background_tasks, ui

from mosaic.contract.errors import MosaicError
from mosaic.web.layout import trouble
from mosaic.web.tensorboard_server import log_folder

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

TOUCH_SECONDS = 30.0


async def show(page: RunPage) -> None:
    """Start TensorBoard if necessary, and show it."""
    try:
        await page.web.do(lambda: log_folder(page.paths))
    except MosaicError as error:
        ui.label(str(error)).classes("opacity-80")
        return
    address = f"/tensorboard/{page.run_id}/"
    column = ui.column().classes("w-full gap-2")
    with column, ui.row().classes("items-center gap-3"):
        ui.spinner(size="md").props("aria-hidden=true")
        ui.label("Starting TensorBoard. This takes a few seconds.")

    async def open_it() -> None:
        try:
            await page.boards.open(page.run_id)
        except MosaicError as error:
            column.clear()
            with column:
                trouble(error)
            return
        column.clear()
        with column:
            ui.link("Open in a window of its own", address, new_tab=True).classes("text-sm")
            frame = ui.element("iframe").classes("w-full rounded border-0 bg-white").style("height: 75vh")
            frame.props["src"] = address
            frame.props["title"] = "TensorBoard"

    async def touch() -> None:
        page.boards.touch(page.run_id)

    background_tasks.create(open_it(), name="tensorboard")
    page.every(TOUCH_SECONDS, touch)
