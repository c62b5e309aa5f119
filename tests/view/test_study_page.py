"""The report on a study: what it says of ranks and steps, in both languages, and its heat maps as they are drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import tool
from report_browser import violations
from report_files import data_of

from precision_tool.lib.demo.ranks import RanksTruth, generate_ranks
from precision_tool.lib.diagnose.study import Study
from precision_tool.lib.diagnose.study_conclusion import Conclusion
from precision_tool.lib.diagnose.study_table import HeatMap
from precision_tool.lib.messages import Message
from precision_tool.lib.view.report_page import page_of
from precision_tool.lib.view.study_report import study_document, write_study

Browse = Callable[..., Any]

#: The colour at a place of a heat map, as parts of its width and height.
PIXEL = """(x, y) => { const canvas = document.getElementById('heat-rank');
  return [...canvas.getContext('2d').getImageData(canvas.width * x, canvas.height * y, 1, 1).data]; }"""
#: How many pixels of a heat map have the colour of the worst shade.
REDDEST = """(() => { const canvas = document.getElementById('heat-rank'); let count = 0;
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < data.length; i += 4) if (data[i] === 165 && data[i + 1] === 15 && data[i + 2] === 21) count += 1;
  return count; })()"""


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RanksTruth]:
    folder = tmp_path_factory.mktemp("study")
    truth = generate_ranks(folder, ranks=3, steps=2, fault="update", fault_rank=1, fault_step=1, benchmark="none")
    tool("ac", "--all", "--report", "report.html", cwd=folder)
    return folder / "report.html", truth


def test_the_data_of_the_page(studied: tuple[Path, RanksTruth]) -> None:
    path, truth = studied
    study = data_of(path)["study"]
    culprit = study["culprit"]
    assert (culprit["step"], culprit["rank"], culprit["op"]) == (1, 1, truth.culprit)
    assert (culprit["reach"], culprit["right"]) == ("one_rank", 2)
    by_step, by_rank = study["maps"]
    assert (by_step["what"], by_step["places"]) == ("step", [0, 1])
    assert (by_rank["what"], by_rank["places"]) == ("rank", [0, 1, 2])
    at = by_rank["ops"].index(truth.culprit)
    assert [int(row[at] >= "4") for row in by_rank["rows"]] == [0, 1, 0]
    assert by_step["others"][ord(by_step["worst"][1][at]) - 0x2800] == 1, "rank 1 is the worst of step 1"
    assert by_rank["others"][ord(by_rank["worst"][1][at]) - 0x2800] == 1, "step 1 is the worst of rank 1"
    folder = next(one for one in study["folders"] if (one["step"], one["rank"]) == (1, 1))
    assert folder["accused"][0]["op"] == truth.culprit
    place = f"{truth.culprit} --step 1 --rank 1"
    off = [curve for curve in study["curves"]["curves"] if curve["leaves"]]
    assert [(curve["name"], [line["rank"] for line in curve["lines"]]) for curve in off] == [("fc1/kernel", [1])]
    assert [leaving["at"] for leaving in off[0]["leaves"]] == [1]
    lines = [f"precision-tool {line}" for line in (f"ni {place}", f"repro {place}", "ac --all")]
    assert [step["line"] for step in study["next"][-3:]] == lines
    assert str(truth.culprit) in path.read_text("utf-8"), "where no script runs"


def test_shades() -> None:
    values = np.array([[np.nan, 0, 9e-7, 2e-6, 2e-4, 2e-3, 2e-2, 0.2, np.inf]], np.float32)
    heat = HeatMap(what="step", places=(7,), ops=tuple("abcdefghi"), values=values)
    study = Study(conclusion=Conclusion(culprit=None), leaves=(), votes=(), maps=(heat,))
    document = study_document(study, tool="tool", time="now")
    assert document["study"]["maps"][0]["rows"] == ["-00123455"]
    assert document["study"]["maps"][0]["own"] is None


def test_own_errors_are_told_apart(browse: Browse, tmp_path: Path) -> None:
    recomputed = np.array([[False, True]])
    heat = HeatMap(
        what="step", places=(7,), ops=("a", "b"), values=np.array([[0.2, 0.2]], np.float32), recomputed=recomputed
    )
    study = Study(conclusion=Conclusion(culprit=None), leaves=(), votes=(), maps=(heat,))
    write_study(str(tmp_path / "report.html"), study)
    page = browse(tmp_path / "report.html")
    box = page.page.locator("#heat-step").bounding_box()
    for at, is_own in ((0.25, False), (0.75, True)):
        page.page.mouse.move(box["x"] + box["width"] * at, box["y"] + box["height"] / 2)
        assert ("own error" in page.text("#cell-step")) is is_own
        corner, middle = (
            page.ask(f"({PIXEL.replace('rank', 'step')})({at + x}, {y})") for x, y in ((-0.248, 0.1), (0, 0.5))
        )
        assert (corner != middle) is is_own, "told without colours too"
    page.page.mouse.click(box["x"] + 2, box["y"] + 2)
    assert page.page.locator("#study-leaf").count() == 0, "no folder is known"


def check_cells_lead_to_folders(page: Any, culprit: str, at: int, count: int) -> None:
    """A click on a cell, or Enter, shows the folder in which the op is worst, and the commands for it."""
    box = page.page.locator("#heat-step").bounding_box()
    page.page.mouse.click(box["x"] + box["width"] * (at + 0.5) / count, box["y"] + box["height"] * 0.75)
    leaf = page.text("#study-leaf")
    assert leaf.startswith(f"step 1, rank 1 · {culprit}")
    folder = page.ask("report.data.study.folders.find((one) => one.step === 1 && one.rank === 1).path")
    assert f"precision-tool ni {culprit} --step 1 --rank 1" in leaf
    assert f"precision-tool ac -c -lt {folder} --report" in leaf
    page.page.focus("#heat-rank")
    for key in ("ArrowDown", "ArrowUp", "ArrowUp", "ArrowLeft", "Enter"):
        page.page.keyboard.press(key)
    before = page.ask(f"report.data.study.maps[1].ops[{at - 1}]")
    assert page.text("#study-leaf h3").endswith(f"rank 0 · {before}")


@pytest.mark.slow
def test_the_page_in_a_browser(studied: tuple[Path, RanksTruth], browse: Browse) -> None:
    path, truth = studied
    page = browse(path)
    told = page.text("#study-verdict")
    assert truth.culprit in told
    assert "step 1, rank 1" in told
    for name in ("cause_text", "ground_text", "reach_text"):
        assert data_of(path)["study"]["culprit"][name]["en"] in told
    assert f"ni {truth.culprit} --step 1 --rank 1" in told
    at = page.ask(f"report.data.study.maps[1].ops.indexOf({json.dumps(truth.culprit)})")
    count = page.ask("report.data.study.maps[1].ops.length")
    box = page.page.locator("#heat-rank").bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * (at + 0.5) / count, box["y"] + box["height"] * 0.5)
    assert page.text("#cell-rank").startswith(f"rank 1, {truth.culprit}: ")
    colours = [page.ask(f"({PIXEL})({(at + 0.5) / count}, {y})") for y in (1 / 6, 1 / 2)]
    assert colours[0] != colours[1]
    assert page.text("#curves .multiple.is-off figcaption bdi") == "fc1/kernel"
    assert page.page.locator("#curves .is-off .marked").text_content() == "▲ 1"
    assert page.page.locator("#curves .is-off .left").count() == 1
    check_cells_lead_to_folders(page, str(truth.culprit), at, count)
    page.page.click("#language")
    assert data_of(path)["study"]["culprit"]["reach_text"]["zh"] in page.text("#study-verdict")
    page.page.click("#theme")
    assert page.ask("document.documentElement.dataset.theme") == "dark"


@pytest.mark.slow
def test_a_study_of_very_many_ranks_opens(tmp_path: Path, browse: Browse) -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((1000, 10_000)) < 0.9, 1e-7, 1e-3).astype(np.float32)
    values[211, 5000] = np.inf
    heat = HeatMap(what="rank", places=tuple(range(1000)), ops=tuple(f"op_{i}" for i in range(10_000)), values=values)
    study = Study(conclusion=Conclusion(culprit=None), leaves=(), votes=(), maps=(heat,))
    path = tmp_path / "report.html"
    path.write_text(page_of(study_document(study, tool="tool", time="now"), ["text"]), encoding="utf-8")
    page = browse(path)
    worst = page.ask(REDDEST)
    assert worst >= 1, "one bad cell of ten million is seen"


def test_names_are_no_markup(tmp_path: Path) -> None:
    heat = HeatMap(what="step", places=(0,), ops=("</script><b>",), values=np.zeros((1, 1), np.float32))
    study = Study(
        conclusion=Conclusion(culprit=None),
        leaves=(),
        votes=(),
        maps=(heat,),
        notes=(Message("text", text="<img src=x>"),),
    )
    page = page_of(study_document(study, tool="<x-tool>", time="now"), ["<x-text>"])
    for tag in ("</script><b>", "<img src=x>", "<x-tool>", "<x-text>"):
        assert tag not in page


def test_a_report_among_the_dumps_is_refused(tmp_path: Path) -> None:
    generate_ranks(tmp_path, ranks=1, steps=1, fault="none")
    place = os.path.join("precision_data", "npu", "debug_0", "dump", "report.html")
    tool("ac", "--all", "--report", place, cwd=tmp_path, code=2)
    assert not (tmp_path / place).exists()


@pytest.mark.slow
def test_axe_finds_no_violation(browse: Browse, studied: tuple[Path, RanksTruth]) -> None:
    page = browse(studied[0])
    page.page.click("#heat-rank")
    assert page.page.is_visible("#study-leaf")
    assert violations(page) == []
    page.page.click("#theme")
    assert violations(page, "color-contrast") == []
