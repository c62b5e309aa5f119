"""The documentation site: its pages are files that are there, and their lists are what GitHub shows.

scripts/docs builds it with packages that tests do without.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]
SITE = REPO / "scripts" / "site"
LIST = """\
Text:
1. one

   ```sh
   - no item
   ```
   more
2. two
   lines
- three
  lines

```
1. a
   b
```
"""
#: Further lines at four blanks, and an empty line before a list and after an item of several paragraphs.
WRITTEN = """\
Text:

1. one

    ```sh
    - no item
    ```
    more

2. two
    lines
- three
    lines

```
1. a
   b
```
"""


@pytest.fixture(scope="module")
def hooks() -> Any:
    """The hooks of mkdocs."""
    spec = importlib.util.spec_from_file_location("site_hooks", SITE / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_document_is_a_page_and_every_page_a_document() -> None:
    config = (SITE / "mkdocs.yml").read_text("utf-8")
    pages = re.findall(r"^ *- [^:]+: (\S+\.md)$", config, re.MULTILINE)
    found = [*REPO.glob("*.md"), *(REPO / ".github").glob("*.md"), *(REPO / "precision_tool").rglob("*.md")]
    documents = {path.relative_to(REPO).as_posix() for path in found}
    assert documents - set(pages) == set()
    assert {page for page in set(pages) - documents if ".zh-CN." not in page} == set()
    for name in re.findall(r"\[((?:javascripts|stylesheets)/\S+?)\]", config):
        assert (SITE / "pages" / name).is_file()
    assert "http" not in re.sub("#.*", "", config), "pages load nothing from the network"


def test_lists_are_written_as_the_site_reads_them(hooks: Any) -> None:
    assert hooks.on_page_markdown(LIST) == WRITTEN


def test_pages_that_are_not_written_are_left_out(hooks: Any) -> None:
    nav = [
        {"Start": "README.md"},
        {"Other": [{"none": "none.md"}]},
        {"More": [{"none": "none.md"}, {"Log": "CHANGELOG.md"}]},
    ]
    assert hooks._written(nav) == [{"Start": "README.md"}, {"More": [{"Log": "CHANGELOG.md"}]}]
