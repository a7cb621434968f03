"""What Tailwind makes of the classes that pages use, written once instead of in every browser at every page.

python tests/tailwind.py        # writes src/mosaic/web/tailwind.js anew; tests/browser/test_tailwind.py says when
"""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import nicegui
from playwright.sync_api import Browser, sync_playwright

WEB = Path(__file__).resolve().parents[1] / "src" / "mosaic" / "web"
STYLES = WEB / "tailwind.js"
NICEGUI = Path(nicegui.__file__).parent
HEAD = """// Written by tests/tailwind.py: the styles of Tailwind's classes that pages, NiceGUI and Quasar name.
// In the browser Tailwind would read every page and make the same, after each change of it. Never edit by hand.
"""
# As NiceGUI's own page has it.
DARK = "@custom-variant dark (&:where(body.body--dark, body.body--dark *));"


def main() -> None:
    """Write the file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or "", args=["--no-sandbox"])
        text = styles(browser, words([*our_sources(), *their_sources()]))
        browser.close()
    # One rule a line, so that a change is seen where it is.
    text = re.sub(r"\s*\n\s*", " ", text).replace("} ", "}\n").replace("; }", " }")
    escaped = text.replace("\\", "\\\\").replace("`", "\\`").replace("${", "\\${").replace("</", "<\\/")
    STYLES.write_text(f"{HEAD}addStyle(`\n{escaped.strip()}\n`);\n", encoding="utf-8")


def our_sources() -> list[Path]:
    return sorted(path for path in (*WEB.rglob("*.py"), *WEB.rglob("*.js")) if path != STYLES)


def their_sources() -> list[Path]:
    """Whoever else puts classes on our pages: some have names that Tailwind knows, too."""
    elements = [*NICEGUI.glob("elements/*.py"), *NICEGUI.glob("elements/*.js"), *NICEGUI.glob("elements/echart/*")]
    found = [*elements, NICEGUI / "static" / "nicegui.js", NICEGUI / "static" / "quasar.umd.prod.js"]
    return sorted(path for path in found if path.suffix in (".py", ".js"))


def words(sources: Iterable[Path]) -> list[str]:
    """Everything that could be a class; Tailwind takes what it knows."""
    found: set[str] = set()
    for path in sources:
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r"""[^\s"'`<>={}();,?+|&$\\]+""", text))
        # A value of one's own may have brackets and commas: lg:grid-cols-[minmax(0,1fr)_23rem]
        found.update(re.findall(r"""[a-z:-]+-\[[^\]\s"'`]+\]""", text))
    # Tailwind's rotations would turn Quasar's icons twice: NiceGUI takes them back where Tailwind is on.
    return sorted(word for word in found if len(word) < 60 and not re.fullmatch(r"rotate-\d+", word))


def styles(browser: Browser, classes: list[str]) -> str:
    """The style sheet that Tailwind makes of these classes, in the version that NiceGUI brings."""
    page = browser.new_page()
    page.set_content(f'<style type="text/tailwindcss">{DARK}</style><div id="words"></div>')
    page.evaluate(f"document.getElementById('words').className = {json.dumps(' '.join(classes))}")
    page.add_script_tag(path=NICEGUI / "static" / "tailwindcss.min.js")
    texts = "[...document.querySelectorAll('style:not([type])')].map(style => style.textContent)"
    made = str(page.wait_for_function(f"() => {texts}.find(text => text.includes('@layer'))").json_value())
    page.close()
    return made


if __name__ == "__main__":
    main()
