"""The styles that come with every page are those of the classes that pages use."""

import re
from collections.abc import Callable

import tailwind
from playwright.sync_api import Browser, Page

# The names of rules, without what they say: a newer Tailwind may word the same in another way.
NAMES = re.compile(r"\.((?:\\.|[\w-])+)")


def test_every_class_of_our_pages_has_its_style_ready_made(browser: Browser) -> None:
    made = tailwind.styles(browser, tailwind.words(tailwind.our_sources()))
    written = tailwind.STYLES.read_text(encoding="utf-8").replace("\\\\", "\\")
    lacking = {*NAMES.findall(made)} - {*NAMES.findall(written)}
    assert not lacking, f"write them with: python {tailwind.__file__}"


def test_pages_bring_their_styles_and_no_compiler(open_page: Callable[..., Page]) -> None:
    page = open_page("/runs")
    page.get_by_role("link", name="MOSAIC").wait_for()
    assert page.evaluate("getComputedStyle(document.querySelector('.sr-only')).position") == "absolute"
    assert page.locator("script[src*=tailwind]").count() == 0
