"""Takes the picture of the report in the README, the demo at its culprit: `report_picture.py FILE.png en|zh`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def main() -> None:
    """Writes the picture to the file that is named."""
    target, language = Path(sys.argv[1]), sys.argv[2]
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tool = [sys.executable, "-m", "precision_tool"]
        for words in (["demo", "--generate-only", "."], ["ac", "-c", "--report", "report.html"]):
            subprocess.run([*tool, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS], env={"HOME": name})
            page = browser.new_page(
                viewport={"width": 1080, "height": 620}, locale={"en": "en-US", "zh": "zh-CN"}[language]
            )
            page.goto((folder / "report.html").as_uri())
            page.click("#button-map")
            page.keyboard.press("c")
            page.wait_for_timeout(1000)  # the map slides there
            page.screenshot(path=target)
            browser.close()
    print(target)


if __name__ == "__main__":
    main()
