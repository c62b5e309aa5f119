"""A browser for the tests of the page, and reports to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import tool
from report_files import compared

from precision_tool.lib.demo.generate import generate_demo

#: No GPU, no sandbox as root, and nothing that a browser asks the network for by itself.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
#: The checker of accessibility, which `npm ci` installs for development alone.
AXE = Path(__file__).resolve().parents[1] / "scripts" / "page" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str:
    """The program; skips the tests where there is none, but fails them where CI must have it."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = "no Chromium: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Browser:
    """A page in Chromium that fails the test on a request to anywhere, and on an error in its console."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", lambda message: self.faults.extend([message.text] if message.type == "error" else []))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("file:", "blob:", "data:")):
            self.faults.append(f"request to {request.url}")

    def open(self, path: Path) -> Browser:
        """Opens a report and waits until it can be used."""
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("header.top")
        return self

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.page.evaluate(script)

    def text(self, selector: str) -> str:
        """The text of what a selector finds first."""
        text: str = self.page.inner_text(selector)
        return " ".join(text.split())


def wait_until(page: Any, condition: str) -> None:
    """Until an expression in the page is true: playwright's own way asks by `eval`, which the page's policy forbids."""
    for _ in range(3000):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"{condition}: never")


#: What axe-core is asked for: WCAG 2.2 AA, and good practice.
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice", "experimental")


def violations(page: Browser, *rules: str) -> list[str]:
    """What axe-core finds wrong with what is shown."""
    if not AXE.exists():
        reason = f"no {AXE}: run npm ci in scripts/page"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    if not page.ask("'axe' in window"):
        page.ask(AXE.read_text("utf-8"))
    found: list[str] = page.page.evaluate(
        """(runOnly) => axe.run(document, { resultTypes: ['violations'], runOnly }).then(({ violations }) =>
        violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html}`)))""",
        list(rules or RULES),
    )
    return found


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Makes contexts: windows that know nothing of each other, all of one browser."""
    program = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=[*ARGUMENTS], env={"HOME": str(tmp_path_factory.mktemp("browser"))}
        )
        yield browser.new_context
        with suppress(Exception):
            browser.close()


@pytest.fixture
def browse(chromium: Callable[..., Any]) -> Iterator[Callable[..., Browser]]:
    """Opens a report, at a tab, in a window of its own; at the end nothing may have been asked for or gone wrong."""
    opened: list[tuple[Browser, Any]] = []

    def browse(path: Path, tab: str = "", **options: Any) -> Browser:
        options = {"viewport": {"width": 1280, "height": 800}, "locale": "en-US", "reduced_motion": "reduce", **options}
        context = chromium(**options)
        browser = Browser(context.new_page())
        opened.append((browser, context))
        browser.open(path)
        if tab:
            browser.page.click(f"#button-{tab}")
        return browser

    yield browse
    faults = [fault for browser, _ in opened for fault in browser.faults]
    for _, context in opened:
        context.close()
    assert faults == []


@pytest.fixture(scope="session")
def demo_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on the demo's network."""
    folder = tmp_path_factory.mktemp("demo")
    generate_demo(folder / "precision_data")
    return compared(folder)


@pytest.fixture(scope="session")
def h5_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on PyTorch dumps, which have no graph."""
    pytest.importorskip("h5py")
    folder = tmp_path_factory.mktemp("h5")
    tool("demo", "--h5", "--generate-only", ".", cwd=folder)
    return compared(folder)
