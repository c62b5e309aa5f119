"""What `preflight` shows: the screen, its conclusion, and the page with the heat map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
from preflights import OPS, calm, forecast, preflight_result
from report_files import data_of
from rich.console import Group

from precision_tool.lib.diagnose.preflight_model import Errors, LossScale, Preflight
from precision_tool.lib.diagnose.verdict_model import StepText
from precision_tool.lib.messages import render
from precision_tool.lib.view.preflight_report import write_preflight
from precision_tool.lib.view.preflight_screen import (
    conclusion,
    conclusion_box,
    files_block,
    preflight_lines,
    risky,
    scale_words,
)
from precision_tool.lib.view.report_page import plain_text

Browse = Callable[..., Any]


def screen(result: Preflight, limit: int = 0) -> str:
    return plain_text(Group(*preflight_lines(result, limit), conclusion_box(result, limit)))


def test_a_panel_with_nothing_to_say_is_one_line() -> None:
    lines = screen(preflight_result(calm())).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("bfloat16 "))
    end = next(at for at, line in enumerate(lines) if line.startswith("┏"))
    assert [line.partition(":")[0] for line in lines[start + 1 : end]] == [
        "range", "powers of two left", "loss scale", "rounding", "sensitivity", "search"
    ]  # fmt: skip


def test_ops_that_overflow_come_first_and_at_most_as_many_as_asked_for() -> None:
    names = [op.name for op in risky(forecast())]
    assert names == ["fc1/Square", "loss/Softmax", "gradients/fc1", "gradients/fc2"]
    shown = screen(preflight_result(forecast()), limit=2)
    table = shown.partition("range:")[2].partition("loss scale:")[0]
    assert "loss/Softmax" in table
    assert "gradients/fc1" not in table
    assert "2 of 4 shown" in table


def test_each_emulation_of_the_search_is_a_line_with_what_is_new_in_it() -> None:
    lines = screen(preflight_result(forecast())).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("search: 3 emulations"))
    assert [line.split()[:2] for line in lines[at + 2 : at + 5]] == [["1", "0"], ["2", "1"], ["3", "2"]]
    assert [line.rpartition("+ ")[2] for line in lines[at + 3 : at + 5]] == ["fc1/Square", "loss/Softmax"]


def test_the_last_emulations_are_shown_with_that_of_the_set_which_was_chosen() -> None:
    told = forecast()
    first, second, chosen = told.steps
    lines = screen(preflight_result(replace(told, steps=(first, chosen, *[second] * 5))), limit=3).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("search: 7 emulations"))
    assert [line.split()[0] for line in lines[at + 2 : at + 5]] == ["2", "6", "7"]


def test_the_conclusion_comes_last_with_the_names() -> None:
    lines = screen(preflight_result()).splitlines()
    box = lines[next(at for at, line in enumerate(lines) if line.startswith("┏")) :]
    assert any("fc1/Square, loss/Softmax" in line for line in box)
    assert lines[-1].startswith("┗")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "least.smallest"),
        ({"smallest": 1}, "least.larger"),
        ({"smallest": None}, "least.unknown"),
        ({"smallest": None, "is_finished": False}, "least.stopped"),
    ],
)
def test_how_far_the_set_is_from_the_smallest_one(given: dict[str, Any], said: str) -> None:
    message = conclusion(forecast(**given), preflight_result())
    assert message.kind.endswith("conclusion.keep")
    assert message.least.kind.endswith(said)


def test_a_set_that_is_not_enough_is_said_to_be_none() -> None:
    assert conclusion(forecast(is_enough=False), preflight_result()).kind.endswith("not_enough")
    assert conclusion(calm(), preflight_result()).kind.endswith("as_it_is")


def test_the_loss_scale_of_the_emulation_stands_in_the_box() -> None:
    box = " ".join(screen(preflight_result(forecast())).rpartition("┏")[2].replace("┃", " ").split())
    assert "by emulating the step with loss scale 1024" in box
    assert conclusion(calm(), preflight_result()).scale is None
    for told in (forecast(is_enough=False), forecast(kept=())):
        assert "with loss scale 1024" in render(conclusion(told, preflight_result()))


def test_the_lines_for_the_script_set_the_loss_scale_also_without_files() -> None:
    paths = [("customize_dtypes", "/d/c.cfg")]
    for given in (paths, []):
        block = files_block(forecast(), "TensorFlow", (), given, is_in_place=True)
        assert "npu_tf_config.loss_scale(1024.0)" in plain_text(Group(*block))


def test_an_inference_has_no_errors_of_gradients() -> None:
    kept = forecast()
    object.__setattr__(kept, "all_narrow", Errors(loss=0.1, gradients=nan))
    object.__setattr__(kept, "with_kept", Errors(loss=0.001, gradients=nan))
    assert conclusion(kept, preflight_result()).gradients is None
    assert "gradients" not in screen(preflight_result(kept)).rpartition("┏")[2]


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (LossScale(advised=1.0, lowest=0.5, highest=4.0), "not_needed"),
        (LossScale(advised=1024.0, lowest=16.0, highest=65536.0), "advised"),
        (LossScale(advised=64.0, lowest=256.0, highest=16.0), "none_fits"),
    ],
)
def test_the_loss_scale(scale: LossScale, said: str) -> None:
    assert scale_words(scale).kind.endswith(said)


def test_the_page_has_all_ops_and_stands_without_scripts(tmp_path: Path) -> None:
    write_preflight(str(tmp_path / "p.html"), preflight_result())
    document = data_of(tmp_path / "p.html")["preflight"]
    assert document["ops"] == list(OPS)
    rows = {(row["what"], row["dtype"]): row["values"] for row in document["rows"]}
    assert rows["headroom", "float16"] == [3.5, -2.25, 9, -4, 15.5, 30, None], "of Softmax what is inside is larger"
    assert rows["sensitivity", "float16"][:4] == [0.02, "inf", 0, 40]
    assert rows["headroom", "bfloat16"][2:] == [None] * 5
    text = (tmp_path / "p.html").read_text("utf-8").partition("<noscript>")[2]
    assert all(name in text for name in ("fc1/Square", "gradients/fc2"))


@pytest.mark.slow
def test_the_page_in_a_browser(browse: Browse, tmp_path: Path) -> None:
    step = StepText(why="write", line="preflight --write")
    write_preflight(str(tmp_path / "p.html"), preflight_result(), [step])
    page = browse(tmp_path / "p.html")
    box = page.page.locator("#heat-preflight").bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * 1.5 / len(OPS), box["y"] + 3)
    assert page.text("#cell-preflight").startswith("fc1/Square: room, float16: beyond the range by 2.3 ")
    page.page.focus("#heat-preflight")
    page.page.keyboard.press("ArrowRight")
    assert page.text("#cell-preflight").startswith("fc1/Relu: ")
    assert page.ask("document.querySelectorAll('tr.is-different').length") == 2, "what is kept in float32"
    page.page.set_viewport_size({"width": 390, "height": 800})
    assert page.ask("document.documentElement.scrollWidth") == 390
    page.page.click("#language")
    assert "保留 float32" in page.text("article.verdict")
