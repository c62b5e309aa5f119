"""The report in a browser: clicked, typed into, searched, sorted, downloaded, printed. It asks nobody for anything."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import graph_op, one_op_tree, text_graph
from command_line import tool
from report_browser import violations, wait_until
from report_files import compared, data_of, names_of, result_of, shown_without

from precision_tool.lib.compare.columns import read_text
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.messages.catalogue import catalogue
from precision_tool.lib.messages.language import use_language
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.view.report_document import Material, document_of
from precision_tool.lib.view.report_page import page_of, plain_verdict, write_page

Browse = Callable[..., Any]

pytestmark = pytest.mark.slow

CULPRIT = "report.state.result.culprit"
ENGLISH = catalogue("en")


def test_the_first_screen_is_the_verdict(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report)
    culprit = result_of(demo_report)["verdict"]["culprit"]
    assert page.text("#tab-verdict h2").startswith(culprit)
    assert "fusion off TbeConvDequantVaddReluQuantFusionPass" in page.text("#tab-verdict .steps")
    assert page.text("#tab-verdict .tile:nth-child(2) b") == "173"


@pytest.mark.parametrize(("locale", "title"), [("en-US", "Precision of the device"), ("zh-CN", "设备精度")])
def test_the_precision_of_the_device_stands_below_the_verdict(
    browse: Browse, demo_report: Path, locale: str, title: str
) -> None:
    page = browse(demo_report, locale=locale)
    profile = result_of(demo_report)["profile"]
    assert page.text(".profile h3") == title
    language = locale.partition("-")[0]
    assert page.text(".profile li") == profile["conclusion"][0][language]
    page.page.click(".profile summary")
    assert page.page.locator(".profile tbody tr").count() == len(profile["types"])
    assert page.text(".profile tbody td") == profile["types"][0]["type"]


def test_the_next_step_is_copied(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, permissions=["clipboard-read", "clipboard-write"])
    page.page.click("#tab-verdict .steps button.copy")
    wait_until(page.page, "document.querySelector('.steps button.copy').textContent === 'Copied'")
    assert (
        page.ask("navigator.clipboard.readText()") == "precision-tool fusion off TbeConvDequantVaddReluQuantFusionPass"
    )


def shown_boxes(page: Any) -> list[list[float]]:
    """Left, top, right, bottom, state and parent of every item that is shown on the map."""
    boxes: list[list[float]] = page.ask(
        """(() => { const t = report.parts.map.tree; const found = [];
        for (let i = 0; i < t.total; i += 1) if (t.state[i]) found.push([t.x[i], t.y[i], t.x[i] + t.w[i],
          t.y[i] + t.h[i], t.state[i], t.parent[i], i]); return found; })()"""
    )
    return boxes


def check_no_overlap(page: Any) -> int:
    """Items of one group do not overlap, and lie within it; how many there are."""
    boxes = shown_boxes(page)
    ops = page.ask("report.parts.map.tree.ops")
    by_item = {box[6]: box for box in boxes}
    by_parent: dict[float, list[list[float]]] = {}
    for box in boxes:
        by_parent.setdefault(box[5], []).append(box)
        if box[5] >= 0:
            around = by_item[ops + box[5]]
            assert around[0] <= box[0] <= box[2] <= around[2]
            assert around[1] <= box[1] <= box[3] <= around[3]
    for siblings in by_parent.values():
        for at, one in enumerate(siblings):
            for other in siblings[at + 1 :]:
                assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return len(boxes)


def places_on_screen(page: Any, ops: str) -> list[list[float]]:
    """Left, top, right and bottom on the map's canvas of the boxes that stand for ops, in its size."""
    places: list[list[float]] = page.ask(
        f"""(() => {{ const m = report.parts.map, t = m.tree, {{ k, x, y }} = m.view;
        return {ops}.map((op) => t.shownAs[op]).map((i) => [(t.x[i] * k + x) / m.canvas.clientWidth,
          (t.y[i] * k + y) / m.canvas.clientHeight, ((t.x[i] + t.w[i]) * k + x) / m.canvas.clientWidth,
          ((t.y[i] + t.h[i]) * k + y) / m.canvas.clientHeight]); }})()"""
    )
    return places


@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_the_map_opens_at_the_culprit_and_the_path_of_its_error(
    browse: Browse, demo_report: Path, size: tuple[int, int]
) -> None:
    page = browse(demo_report, "map", viewport={"width": size[0], "height": size[1]})
    assert page.ask(f"report.parts.map.tree.shownAs[{CULPRIT}] === {CULPRIT}")
    assert page.ask("report.parts.map.view.k") >= 0.6
    path = places_on_screen(page, "report.state.result.error_path")
    assert len(path) > 3
    # All of it on a screen, on a phone its beginning.
    for left, top, right, bottom in path if size[0] > 1000 else path[:2]:
        assert min(left, top) >= 0
        assert max(right, bottom) <= 1


def test_nothing_overlaps_however_much_is_open(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "map")
    some = check_no_overlap(page)
    page.page.click(f"text={ENGLISH['page.map.open']}")
    wait_until(page.page, "!report.parts.map.isBusy")
    everything = check_no_overlap(page)
    page.page.click(f"text={ENGLISH['page.map.close']}")
    few = check_no_overlap(page)
    assert few < some < everything
    result = result_of(demo_report)
    assert everything == len(result["map"]["parent"])


def test_a_group_opens_and_closes_on_a_click(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "map")
    page.page.click(f"text={ENGLISH['page.map.close']}")
    before = len(shown_boxes(page))
    where = page.ask(
        """(() => { const m = report.parts.map, t = m.tree, i = t.childrenOf(-1).find((one) => t.isGroup(one));
        const r = m.canvas.getBoundingClientRect(); m.centre(i, 1, false);
        return [r.left + r.width / 2, r.top + r.height / 2]; })()"""
    )
    page.page.mouse.click(*where)
    assert len(shown_boxes(page)) > before
    page.page.keyboard.press("Escape")


def test_a_click_on_an_op_shows_it(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "map")
    box = page.page.locator(".map-canvas").bounding_box()
    ((left, top, right, bottom),) = places_on_screen(page, f"[{CULPRIT}]")
    page.page.mouse.click(box["x"] + box["width"] * (left + right) / 2, box["y"] + box["height"] * (top + bottom) / 2)
    culprit = result_of(demo_report)["verdict"]["culprit"]
    assert page.text("#panel h3") == culprit
    panel = page.text("#panel")
    for key in ("state.wrong", "op.worst", "op.axes", "op.fed_by"):
        assert ENGLISH[f"page.{key}"] in panel
    assert all(f"precision-tool {word} {culprit}" in panel for word in ("ni", "repro"))
    assert page.page.locator("#panel .histogram svg").count() >= 2
    page.page.click("#panel .links button.link")
    assert page.text("#panel h3") != culprit


def test_the_walk_through_the_errors(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "map")
    result = result_of(demo_report)
    names, ops = names_of(result), result["ops"]
    wrong = [name for name, agree in zip(names, ops["agree"], strict=True) if agree is False]
    seen = []
    for _ in range(3):
        page.page.keyboard.press("n")
        seen.append(page.text("#panel h3"))
    assert seen == wrong[:3]
    page.page.keyboard.press("p")
    assert page.text("#panel h3") == wrong[1]
    page.page.keyboard.press("p")
    page.page.keyboard.press("p")
    assert page.text("#panel h3") == wrong[-1]
    assert page.ask("report.parts.map.tree.shownAs[report.state.op] === report.state.op")


def test_the_search(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report)
    page.page.keyboard.press("2")
    page.page.keyboard.press("/")
    page.page.keyboard.type("maxpoolgrad")
    result = result_of(demo_report)
    types = [result["texts"][at] for at in result["ops"]["type"]]
    expected = [at for at, name in enumerate(types) if name == "MaxPoolGrad"]
    assert page.ask("report.state.found") == expected
    assert page.text(".search .soft") == f"{len(expected)} ops"
    page.page.keyboard.press("Enter")
    assert page.ask("report.state.op") == expected[0]
    page.page.keyboard.press("Enter")
    assert page.ask("report.state.op") == expected[1]
    page.page.keyboard.press("Escape")
    assert page.ask("report.state.search") == ""
    for word, least in (("TbeConvDequant", 2), ("conv2/kernel", 1), ("no such op", 0)):
        page.page.fill("#search", word)
        assert page.ask("report.state.found.length") >= least
    assert page.text(".search .soft") == "0 ops"


def test_colours_by_what_is_asked(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "map")
    shots = set()
    for mode in ("own", "cosine", "beyond", "headroom", "dtype", "pass"):
        page.page.select_option("#mode", mode)
        page.ask("report.parts.map.draw()")
        shots.add(page.ask("report.parts.map.canvas.toDataURL()"))
        assert page.ask("report.parts.map.shades.mode") == mode
    assert len(shots) == 6
    page.page.select_option("#mode", "dtype")
    assert "float16" in page.text(".legend")


def table_cells(page: Any, tab: str, column: int) -> list[str]:
    cells: list[str] = page.ask(
        f"[...document.querySelectorAll('#tab-{tab} .grid-row')]"
        f".map((row) => row.children[{column}].textContent.trim())"
    )
    return cells


def test_tables_open_worst_first(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "ops")
    result = result_of(demo_report)
    culprit = names_of(result).index(result["verdict"]["culprit"])
    shown = page.ask("report.parts.ops.shown")
    below = [at for at, agree in enumerate(result["ops"]["agree"]) if agree is False]
    assert shown[0] == culprit
    cosines = [result["ops"]["cosine"][at] for at in shown[1 : len(below)]]
    assert cosines == sorted(cosines)
    assert {culprit, *shown[1 : len(below)]} == set(below)
    assert ENGLISH["page.table.worst"] in page.text("#tab-ops .grid-count")
    page.page.click("#tab-ops button[data-key=order]")
    assert ENGLISH["page.table.worst"] not in page.text("#tab-ops .grid-count")
    assert page.ask("report.parts.ops.shown[0]") != culprit
    page.page.click("#button-tensors")
    columns = result["tensors"]
    rows = page.ask("report.parts.tensors.shown")
    of_culprit = [row for row in rows if columns["op"][row] == culprit]
    assert rows[: len(of_culprit)] == of_culprit
    rest = rows[len(of_culprit) :]
    wrong = [row for row in rest if columns["agree"][row] is False]
    assert rest[: len(wrong)] == wrong
    assert [columns["cosine"][row] for row in wrong] == sorted(columns["cosine"][row] for row in wrong)


def test_own_errors_stand_over_what_rounding_explains(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "charts")
    result = result_of(demo_report)
    ops = result["ops"]
    culprit = names_of(result).index(result["verdict"]["culprit"])
    known = [at for at, own in enumerate(ops["own"]) if own is not None]
    share = (culprit - known[0]) / (known[-1] - known[0])
    shown = legend_at(page.page.locator("[data-key='chart.own']"), share)[f"★ {ENGLISH['page.verdict.culprit']}"]
    assert float(shown.replace(",", "")) == pytest.approx(ops["own"][culprit] / ops["rounding"][culprit], rel=1e-3)


@pytest.fixture(scope="module")
def overflow_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on an overflow that leaves the culprit's output above the threshold."""
    folder = tmp_path_factory.mktemp("overflow")
    generate_demo(folder / "precision_data", fault="overflow")
    return compared(folder)


def test_a_culprit_that_agrees_is_not_praised(browse: Browse, overflow_report: Path) -> None:
    result = result_of(overflow_report)
    ops = result["ops"]
    culprit = names_of(result).index(result["verdict"]["culprit"])
    assert ops["agree"][culprit] is True
    page = browse(overflow_report)
    page.ask(f"report.show({culprit})")
    assert page.page.locator("#panel .badge.is-good").count() == 0
    output = page.page.locator("#panel .tensor").first
    assert output.get_attribute("open") is not None
    assert output.locator("summary .is-good").count() == 0
    for note in result["overflow_notes"][str(culprit)]:
        assert note["en"] in page.text("#panel")
    # An op that nobody blames is praised, and takes no room.
    clean = next(
        at for at, agree in enumerate(ops["agree"]) if agree is True and at != culprit and ops["cosine"][at] == 1
    )
    page.ask(f"report.show({clean})")
    assert page.page.locator("#panel .badge.is-good").count() == 1
    assert page.page.locator("#panel .tensor[open]").count() == 0
    # Behind the verdict stands what follows from it, a single number by its relative distance.
    named = [one.inner_text() for one in page.page.locator(".follows .link").all()]
    path = [at for at in result["error_path"] if at != culprit and ops["agree"][at] is False]
    assert named == [names_of(result)[at] for at in path[:8]]


def test_tables_sort_and_filter(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "ops")
    page.page.click("#tab-ops button[data-key=own]")
    page.page.click("#tab-ops button[data-key=own]")
    assert table_cells(page, "ops", 1)[0] == result_of(demo_report)["verdict"]["culprit"]
    page.page.fill("#tab-ops input[data-key=cosine]", "<0.98")
    assert page.text("#tab-ops .grid-count").startswith("34 of 83")
    page.page.fill("#tab-ops input[data-key=type]", "maxpool")
    assert set(table_cells(page, "ops", 2)) == {"MaxPool", "MaxPoolGrad"}
    page.page.fill("#tab-ops input[data-key=type]", "")
    page.page.fill("#tab-ops input[data-key=cosine]", "")
    page.page.fill("#search", "conv1")
    assert all(
        "conv1" in row for row in page.ask("report.parts.ops.shown.map((op) => report.state.result.searchable[op])")
    )


def test_a_table_is_downloaded_and_copied(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "tensors", permissions=["clipboard-read", "clipboard-write"])
    page.page.fill("#tab-tensors input[data-key=slot]", "output:0")
    with page.page.expect_download() as waiting:
        page.page.click("#tab-tensors .grid-download")
    text = Path(waiting.value.path()).read_text("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    result = result_of(demo_report)
    slots = [result["texts"][at] for at in result["tensors"]["slot"]]
    assert len(rows) == slots.count("output:0")
    assert {row["slot"] for row in rows} == {"output:0"}
    shown = page.ask("report.parts.tensors.shown")
    assert sorted(shown) == [row for row, slot in enumerate(slots) if slot == "output:0"]
    wanted = [result["tensors"]["cosine"][row] for row in shown]
    assert [float(row["cosine"]) if row["cosine"] else None for row in rows] == wanted
    page.page.click("#tab-tensors .grid-tools button:nth-of-type(1)")
    assert (
        page.ask("navigator.clipboard.readText()").replace("\r\n", "\n").strip() == text.replace("\r\n", "\n").strip()
    )


def test_a_row_leads_to_its_op(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "ops")
    page.page.focus("#tab-ops .grid-body")
    for _ in range(5):
        page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    assert page.text("#panel h3") == names_of(result_of(demo_report))[page.ask("report.parts.ops.shown[4]")]
    page.page.click("#panel .op-tools button")
    assert page.ask("report.state.tab") == "map"
    page.page.keyboard.press("Escape")
    assert not page.page.is_visible("#panel")


def integer_report(folder: Path) -> Path:
    large = np.array([1234567891, 2, -1987654321], np.int32)
    one_op_tree(folder / "precision_data", output=large, golden=large + np.int32(1234567), inputs=[large, large])
    return compared(folder)


def test_integers_are_shown_with_all_their_digits(browse: Browse, tmp_path: Path) -> None:
    page = browse(integer_report(tmp_path), "tensors")
    cells = table_cells(page, "tensors", 1)
    page.page.locator("#tab-tensors .grid-row").nth(cells.index("output:0")).click()
    panel = page.text("#panel")
    for value in ("-1,987,654,321", "1,235,802,458", "1,234,567", "1,234,569"):
        assert value in panel
    shown = {cell for column in range(30) for cell in table_cells(page, "tensors", column)}
    assert {"1,234,567", "-1,987,654,321", "1,235,802,458"} <= shown


def test_what_a_result_lacks_is_not_shown_as_zero(browse: Browse, tmp_path: Path) -> None:
    compared_at = integer_report(tmp_path)
    old = shown_without("NPUNaN", tmp_path)
    for report, wanted in ((compared_at, "0"), (old, "–")):
        page = browse(report)
        page.page.click("#button-tensors")
        keys = page.ask("report.parts.tensors.columns.map((column) => column.key)")
        output = table_cells(page, "tensors", 1).index("output:0")
        assert table_cells(page, "tensors", keys.index("npu_nan"))[output] == wanted


def test_the_compared_one_of_several_ops_of_a_name_is_meant(browse: Browse, tmp_path: Path) -> None:
    one, two = np.ones(3, np.float32), np.full(3, 5.0, np.float32)
    tree = one_op_tree(
        tmp_path / "precision_data", output=two, golden=one * 2, inputs=[one, one], input_goldens=[one, one]
    )
    compared(tmp_path)
    text = tree.graph_path.read_text("utf-8")
    tree.graph_path.write_text(text + text_graph([graph_op("block/add")], name="branch"), "utf-8")
    tool("report", "-g", tree.graph_path, "-o", "both.html", cwd=tmp_path)
    page = browse(tmp_path / "both.html")
    last = len(names_of(result_of(tmp_path / "both.html"))) - 1
    assert page.ask(CULPRIT) == last
    page.page.click("#button-map")
    assert page.ask("report.state.result.culprit >= report.state.result.inGraph")


def test_charts(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "charts")
    keys = page.ask("[...document.querySelectorAll('.chart')].map((one) => one.dataset.key)")
    assert keys == ["chart.distance", "chart.own", "chart.headroom", "chart.lost"]
    assert "float32 → float16" in page.text("#tab-charts table.small")


def about_own_error(page: Any) -> str:
    return " ".join(page.page.inner_text(".chart[data-key='chart.own'] figcaption p").split())


def test_the_peak_of_own_errors_is_the_culprit_only_where_it_is(
    browse: Browse, demo_report: Path, tmp_path: Path
) -> None:
    assert about_own_error(browse(demo_report, "charts")).endswith("The peak is the culprit.")
    generate_demo(tmp_path / "precision_data", fault="stomp")
    report = compared(tmp_path)
    assert "peak" not in about_own_error(browse(report, "charts"))


@pytest.mark.parametrize(
    ("asked", "reader", "opens_in"), [("zh", "en-US", "zh"), ("en", "zh-CN", "en"), ("", "zh-CN", "zh")]
)
def test_a_report_opens_in_the_language_asked_for(
    browse: Browse, tmp_path: Path, asked: str, reader: str, opens_in: str
) -> None:
    with use_language(asked):
        write_page(str(tmp_path / "report.html"), document_of([Material(title="t")], tool="t", time="t"), [])
    page = browse(tmp_path / "report.html", locale=reader)
    assert page.ask("document.documentElement.lang").startswith(opens_in)


def legend_at(chart: Any, x: float) -> dict[str, str]:
    """What a chart says of the place at this part of its width."""
    over = chart.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    over.hover(position={"x": min(max(1, box["width"] * x), box["width"] - 2), "y": 10})
    names, values = (
        chart.locator(f".u-legend {part}").all_inner_texts() for part in (".u-series .u-label", ".u-series .u-value")
    )
    return dict(zip(names, values, strict=True))


def test_the_way_to_an_overflow_is_a_chart(browse: Browse, overflow_report: Path) -> None:
    page = browse(overflow_report)
    result = result_of(overflow_report)
    culprit = result["verdict"]["culprit"]
    at = names_of(result).index(culprit)
    assert result["overflowed"][str(at)]["largest"] > 65504
    page.ask(f"report.show({at})")
    assert page.text("#panel .judged h4") == ENGLISH["page.state.beyond"]
    page.page.click("#panel button.close")
    page.page.click("#button-charts")
    chart = page.page.locator(".chart[data-key='chart.way']")
    assert " ".join(chart.locator("h3").inner_text().split()).endswith(f": {culprit}")
    row = next(
        row for row, (op, slot) in enumerate(zip(result["tensors"]["op"], result["tensors"]["slot"], strict=True))
        if op == at and result["texts"][slot] == "output:0"
    )  # fmt: skip
    most = math.log10(max(abs(result["tensors"][f"golden_{end}"][row]) for end in ("min", "max")) / 65504)
    last, first = legend_at(chart, 1), legend_at(chart, 0)
    assert last["Op"] == culprit
    assert last["NPU"] == "0", "at the limit"
    assert float(last["Benchmark"]) == pytest.approx(most, rel=1e-3), "beyond it"
    assert first["Op"] != culprit
    assert float(first["NPU"]) < 0, "room is left where the way begins"


def test_what_casts_lose_is_a_chart(browse: Browse, tmp_path: Path) -> None:
    """Of four values one is too small for float16, and one too large."""
    values = np.array([[1e-9, 1e6], [1.0, 2.0]], np.float32)
    narrow = np.array([[0.0, np.inf], [1.0, 2.0]], np.float16)
    one_op_tree(
        tmp_path / "precision_data", op_type="Cast", output=narrow, golden=values, inputs=[values],
        input_goldens=[values],
    )  # fmt: skip
    page = browse(compared(tmp_path), "charts")
    chart = page.page.locator(".chart[data-key='chart.lost']")
    legend = legend_at(chart, 0.5)
    assert (legend["Below: became 0"], legend["Above: became Inf"]) == ("25 %", "25 %")


def test_dark_light_and_both_languages(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.ask(paper) == "rgb(20, 22, 27)"
    page.page.click("#theme")
    assert page.ask(paper) == "rgb(255, 255, 255)"
    page.page.click("#language")
    assert page.ask("document.documentElement.lang") == "zh-CN"
    text = page.text("#tab-verdict")
    verdict = result_of(demo_report)["verdict"]
    first = verdict["suspects"][0]
    for shown in (first["cause_text"], first["sentence"], *first["why"], first["confidence_text"], first["affects"]):
        assert " ".join(shown["zh"].split()) in text
        assert shown["en"] not in text
    assert all(" ".join(step["why"]["zh"].split()) in text for step in verdict["next"])
    for tab in ("map", "ops", "tensors", "charts"):
        page.page.click(f"#button-{tab}")
    chinese = browse(demo_report, locale="zh-CN")
    assert chinese.text("#button-verdict") == catalogue("zh")["page.tab.verdict"]


def test_contrast_is_good(browse: Browse, demo_report: Path) -> None:
    """At least 4.5 to 1 between text and paper (WCAG 2.1, AA)."""
    script = """() => { const s = getComputedStyle(document.documentElement);
      const lum = (name) => { const v = s.getPropertyValue(name).trim(); return [1, 3, 5].map((at) => {
        const c = parseInt(v.slice(at, at + 2), 16) / 255;
        return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
      }).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0); };
      const found = {};
      for (const ink of ['--text', '--soft', '--accent', '--bad', '--good', '--warn', '--mark']) {
        for (const paper of ['--paper', '--panel']) { const [a, b] = [lum(ink), lum(paper)].sort((x, y) => y - x);
          found[`${ink} on ${paper}`] = (a + 0.05) / (b + 0.05); } }
      return found; }"""
    for scheme in ("light", "dark"):
        ratios = browse(demo_report, color_scheme=scheme).ask(f"({script})()")
        assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_nothing_stands_out_of_the_screen(browse: Browse, demo_report: Path, size: tuple[int, int]) -> None:
    page = browse(demo_report, viewport={"width": size[0], "height": size[1]})
    for tab in ("verdict", "map", "ops", "tensors", "charts"):
        page.page.click(f"#button-{tab}")
        assert page.ask("document.documentElement.scrollWidth") <= size[0]
        assert page.ask("document.querySelector('main').scrollWidth") <= size[0]
    page.ask(f"report.show({CULPRIT})")
    box = page.page.locator("#panel").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size[0] + 1


def test_print_has_the_verdict_and_no_buttons(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "ops")
    page.page.emulate_media(media="print")
    assert page.page.is_visible("#tab-verdict h2")
    assert not page.page.is_visible("#theme")
    assert not page.page.is_visible("button.copy")


def test_help_tells_keys_and_licences(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report)
    page.page.keyboard.press("?")
    page.page.click(".help summary")
    assert "uplot" in page.text(".help pre")
    page.page.keyboard.press("Escape")
    assert not page.page.is_visible(".help")


def test_axe_finds_no_violation(browse: Browse, demo_report: Path) -> None:
    """In light all rules, on a small screen, where more has to be scrolled; in dark those on colours."""
    page = browse(demo_report, viewport={"width": 390, "height": 560})
    for tab in ("verdict", "charts", "ops", "map"):
        page.page.click(f"#button-{tab}")
        assert violations(page) == [], tab
    page.ask(f"report.show({CULPRIT})")
    assert violations(page) == []
    page.page.click("#theme")
    for tab in ("ops", "verdict"):
        page.page.click(f"#button-{tab}")
        assert violations(page, "color-contrast") == [], tab


def test_without_decompression_stream_it_opens_too(chromium: Callable[..., Any], demo_report: Path) -> None:
    context = chromium()
    context.add_init_script("delete window.DecompressionStream; delete Uint8Array.fromBase64;")
    page = context.new_page()
    page.goto(demo_report.as_uri())
    wait_until(page, "window.report !== undefined")
    assert page.evaluate("report.data.results[0].count") == len(names_of(result_of(demo_report)))
    context.close()


def test_the_verdict_is_seen_before_the_data_are_unpacked(chromium: Callable[..., Any], demo_report: Path) -> None:
    context = chromium()
    page = context.new_page()
    page.add_init_script("""window.seen = [];
      const find = Document.prototype.getElementById;
      Document.prototype.getElementById = function (id) {
        if (id === 'data') seen.push(find.call(this, 'page').innerText);
        return find.call(this, id);
      };""")
    page.goto(demo_report.as_uri())
    wait_until(page, "window.report !== undefined")
    assert data_of(demo_report)["results"][0]["verdict"]["culprit"] in page.evaluate("seen[0]")
    assert page.locator(".first").count() == 0
    context.close()


@pytest.mark.parametrize(("locale", "word"), [("zh-CN", "问题算子"), ("en-US", "Culprit")])
def test_the_first_paint_is_in_the_language_of_the_reader(
    chromium: Callable[..., Any], demo_report: Path, locale: str, word: str
) -> None:
    context = chromium(locale=locale)
    page = context.new_page()
    page.add_init_script("""window.requestAnimationFrame = () => 0; window.setTimeout = () => 0;""")
    page.goto(demo_report.as_uri())
    (seen,) = [one for one in page.locator(".first").all() if one.is_visible()]
    assert word.lower() in seen.inner_text().lower()
    context.close()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_without_scripts_the_verdict_is_there(
    chromium: Callable[..., Any], demo_report: Path, tmp_path: Path, language: str
) -> None:
    """Whom it blames, why, and what to do next: all in the window, and in the language of the report alone."""
    with use_language(language):
        path = tmp_path / "report.html"
        path.write_text(page_of(data_of(demo_report), ["the only verdict"]), "utf-8")
    context = chromium(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(path.as_uri())
    verdict = result_of(demo_report)["verdict"]
    first = verdict["suspects"][0]
    (head,) = [one for one in page.locator(".first").all() if one.is_visible()]
    shown = " ".join(head.inner_text().split())
    assert verdict["culprit"] in shown
    for text in (first["cause_text"], *first["why"], first["affects"], *(step["why"] for step in verdict["next"])):
        assert " ".join(text[language].split()) in shown
    last = head.locator(".steps code").last
    assert last.inner_text() == "precision-tool ac -c --since"
    assert last.bounding_box()["y"] < 800
    assert not page.is_visible("pre.plain")
    context.close()


def test_pytorch_dumps_have_tables_and_no_map(browse: Browse, h5_report: Path) -> None:
    page = browse(h5_report, "map")
    assert "no graph" in page.text("#tab-map")
    page.page.click("#button-tensors")
    assert table_cells(page, "tensors", 0)
    page.page.keyboard.press("n")
    assert page.page.is_visible("#panel")


HOSTILE = (
    "<img src=x onerror=alert(1)>/a", "<script>alert(1)</script>", "a\u202egnp.exe", "\x1b[31mred\x1b[0m/op",
    "'\"`;--/op",
    "\U0001f600/\U0001f4a5", "=HYPERLINK(1)", "__proto__", "constructor/toString", "x" * 10_000, "${7*7}", "{count}",
)  # fmt: skip


def test_names_of_other_machines_do_nothing(browse: Browse, tmp_path: Path) -> None:
    ops = [Op(name="start", type="Data", id=0)]
    ops += [
        Op(
            name=name, type=f"<b>{name[:40]}</b>", id=number, inputs=(Edge(producer=ops[-1].name, index=0),),
            pass_names=(name,), original_names=(name,), attrs={name: name}, output_descs=(TensorDesc(dtype=name),),
        )
        for number, name in enumerate(HOSTILE, 1)
    ]  # fmt: skip
    file = GraphFile(path="<u>graph</u>", graphs=(Graph(name="<i>g</i>", ops=tuple(ops)),))
    differs = {"topic": "<b>n</b>", "names": [], "npu": 1, "benchmark": 2, "text": "<b>2</b>"}
    passport = {"npu": "<b>p</b>", "benchmark": "<b>q</b>", "differences": [differs]}
    material = Material(title="<s>title</s>", file=file, notes=["<script>alert(2)</script>"], passport=passport)
    path = tmp_path / "hostile.html"
    write_page(str(path), document_of([material, material], tool="<t>", time="<t>"), [plain_verdict(material)])
    page = browse(path)
    for tab in ("verdict", "map", "ops", "tensors", "charts"):
        page.page.click(f"#button-{tab}")
    page.page.select_option("header select", index=1)
    page.page.click("#button-map")
    page.page.click(f"text={ENGLISH['page.map.open']}")
    shown = [name.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b") for name in HOSTILE]
    for number, name in enumerate(shown, 1):
        op = page.ask(f"report.state.result.ops.name.indexOf({json.dumps(name)})")
        assert op == number
        page.ask(f"report.show({op})")
        assert page.ask("document.querySelector('#panel h3').textContent") == name
    foreign = "#page img, #page script, #page b b, #page u, #page i:not(.swatch)"
    assert page.page.locator(foreign).count() == 0
    page.page.click("#button-ops")
    with page.page.expect_download() as waiting:
        page.page.click("#tab-ops .grid-download")
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text("utf-8-sig"), newline="")))
    assert [read_text(row["name"]) for row in rows[1:]] == shown
    assert not any(row["name"].startswith(("=", "+", "-", "@")) for row in rows)


def test_a_page_of_another_schema_says_so(chromium: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "newer.html"
    write_page(str(path), {**document_of([], tool="t", time="t"), "schema": 99}, [])
    context = chromium()
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("[role=alert]")
    assert "schema 99" in page.inner_text("[role=alert]")
    context.close()
