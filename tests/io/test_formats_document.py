"""FORMATS.md says what the tables of the code say, and every section that code and tests cite is there."""

from __future__ import annotations

import re
from pathlib import Path

import precision_tool
from precision_tool.lib.compare.columns import METRIC_COLUMNS
from precision_tool.lib.io import data_types
from precision_tool.lib.io import om_file as ge_schema
from precision_tool.lib.view.overflow_screen import UNITS

PACKAGE = Path(precision_tool.__file__).parent
REPO = Path(__file__).parents[2]
TEXT = (PACKAGE / "lib" / "io" / "FORMATS.md").read_text("utf-8")


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"(?m)^#+ ", TEXT.split(f" {title}\n", 1)[1])[0]


def cells(title: str) -> list[list[str]]:
    """The table below a heading, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_data_types() -> None:
    found = {}
    for row in cells("Data types"):
        for code, name, bits in (row[at : at + 3] for at in range(0, 9, 3)):
            if code:
                found[int(code)] = (name, int(bits))
    assert found == {code: (one.name, one.bits) for code, one in data_types.BY_CODE.items() if code in found}
    assert len(found) == 36


def test_the_layouts() -> None:
    found = {}
    for row in cells("Layouts")[:7]:
        for code, name in (row[at : at + 2] for at in range(0, 8, 2)):
            found[int(code)] = name
    assert found == {code: name for code, name in data_types.LAYOUTS.items() if code in found}
    assert len(found) == 28


def test_the_fields_of_graphs() -> None:
    for message, fields in cells("Messages"):
        known = ge_schema.MESSAGES.get(message, {})
        for number, name in re.findall(r"(\d+) (\w+)", fields):
            assert known[name].number == int(number), (message, name)


def test_the_metrics_are_all_explained() -> None:
    explained = [name.strip() for row in cells("The metrics") for name in row[0].split(",")]
    assert explained == list(METRIC_COLUMNS)


def test_the_accelerators_of_overflows() -> None:
    for name in ("AIC", "AIV", "AICPU", "SDMA"):
        assert name in UNITS
        assert re.search(rf"\d {name}\b", section("6. Overflow"))


def test_sections_that_are_cited_are_there() -> None:
    headings = set(re.findall(r"(?m)^#+ (\d+b?)\. ", TEXT))
    cited = set()
    for folder in (PACKAGE, REPO / "tests", REPO / "scripts"):
        for path in folder.rglob("*.py"):
            for sections in re.findall(r"FORMATS\.md (§\d+b?(?:(?:,| and| to) §\d+b?)*)", path.read_text("utf-8")):
                cited |= set(re.findall(r"§(\d+b?)", sections))
    assert {"2", "3", "4", "5", "5b", "6", "7"} <= cited <= headings


def test_no_code_cites_what_lies_outside_of_the_project() -> None:
    """A contributor has only the project: facts stand in it."""
    outside = re.compile(r"shared/(reference|design)")
    for folder in (PACKAGE, REPO / "tests", REPO / "scripts"):
        for path in folder.rglob("*.py"):
            if path != Path(__file__):
                assert not outside.search(path.read_text("utf-8")), path
