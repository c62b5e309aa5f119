"""Reports on msprobe's dumps: modules as groups of the map, and what was recorded of a call in its panel."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import tool
from msprobe_blocks import GELU_LINE, write_network
from msprobe_files import dump_text, forward, literal, tensor
from report_browser import Browser
from report_files import compared, names_of, result_of

from precision_tool.lib.data.msprobe_ops import read_msprobe_graph
from precision_tool.lib.messages.catalogue import catalogue
from precision_tool.lib.view.report_calls import arguments_of
from precision_tool.lib.view.report_document import Material, document_of
from precision_tool.lib.view.report_map import MOST_CHILDREN
from precision_tool.lib.view.report_page import packed, write_page

Browse = Callable[..., Browser]
ENGLISH = catalogue("en")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on a faulty run with its benchmark."""
    folder = tmp_path_factory.mktemp("recorded")
    write_network(folder / "precision_data" / "npu", faulty=True)
    write_network(folder / "precision_data" / "gpu")
    return compared(folder)


def texts_of(result: dict[str, Any], column: str) -> dict[str, Any]:
    """A column of texts by the names of ops."""
    texts, values = result["texts"], result["ops"][column]

    def shown(value: Any) -> Any:
        return [texts[at] for at in value] if isinstance(value, list) else texts[value or 0]

    return dict(zip(names_of(result), map(shown, values), strict=True))


def groups_of(result: dict[str, Any]) -> dict[str, list[str]]:
    """The names of the groups above each op, the outermost first, by the op's name."""
    map_, names = result["map"], [result["texts"][at] for at in result["map"]["groups"]["name"]]
    count = len(map_["parent"]) - len(names)
    above = {}
    for op, name in enumerate(names_of(result)[:count]):
        groups, at = [], map_["parent"][op]
        while at >= 0:
            groups.append(names[at])
            at = map_["parent"][count + at]
        above[name] = groups[::-1]
    return above


def written(folder: Path, entries: Mapping[str, Any], parents: Mapping[str, str | None] | None = None) -> Path:
    """A `dump.json` of statistics with the modules of its calls."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dump.json").write_text(dump_text(entries, task="statistics"))
    if parents is not None:
        (folder / "construct.json").write_text(json.dumps(parents))
    return folder / "dump.json"


def document(path: Path) -> dict[str, Any]:
    """The data of a report on a dump of which nothing was compared."""
    material = Material(title="t", file=read_msprobe_graph(str(path)))
    (result,) = document_of([material], tool="t", time="t")["results"]
    assert isinstance(result, dict)
    return result


# --- where calls stand ------------------------------------------------------------------------------------------------


def test_modules_are_the_groups(report: Path) -> None:
    above = groups_of(result_of(report))
    assert above["Functional.gelu.1.forward"] == ["blocks.1 (Block)"]
    assert above["Functional.linear.0.forward"] == ["blocks.0 (Block)", "up (Linear)"]
    assert above["Functional.mse_loss.0.forward"] == []


def test_the_backward_stands_beside_its_modules(report: Path) -> None:
    result = result_of(report)
    above = groups_of(result)
    assert above["Functional.gelu.1.backward"] == ["backward/blocks.1 (Block)"]
    map_, names = result["map"], [result["texts"][at] for at in result["map"]["groups"]["name"]]
    ops = len(map_["parent"]) - len(names)
    for block in ("blocks.0 (Block)", "blocks.1 (Block)"):
        forward_, backward = (ops + names.index(name) for name in (block, f"backward/{block}"))
        assert (map_["lane"][forward_], map_["lane"][backward]) == (0, 1)
        assert [backward, forward_] in map_["mirrors"]


def test_what_runs_behind_the_backward_is_the_optimizers(report: Path) -> None:
    above = groups_of(result_of(report))
    assert {name for name, groups in above.items() if groups == ["optimizer"] and name.endswith("forward")} == {
        "Tensor.mul_.0.forward", "Tensor.mul_.1.forward",
    }  # fmt: skip


def test_tensors_stand_with_their_first_reader(report: Path) -> None:
    result = result_of(report)
    above = groups_of(result)
    assert above["blocks.1.up.weight"] == ["blocks.1 (Block)", "up (Linear)"]
    labels = texts_of(result, "label")
    assert labels["blocks.1.up.weight"] == "up.weight"
    assert labels["Functional.mse_loss.0.forward.input.0"] == "input.0 · mse_loss.0"
    assert labels["Functional.gelu.1.forward"] == "gelu.1"
    assert labels["Functional.gelu.1.backward"] == "gelu.1.backward"


def test_ops_of_tensors_are_marked_and_no_ops_of_the_count(report: Path) -> None:
    result = result_of(report)
    types = texts_of(result, "type")
    marked = {name for name, mark in zip(names_of(result), result["ops"]["placeholder"], strict=True) if mark}
    assert {types[name] for name in marked} == {"Data", "Variable", "Unrecorded"}
    assert result["counts"]["ops"] == len(result["ops"]["name"]) - len(marked)


def test_a_call_of_unknown_inputs_follows_the_one_before(report: Path) -> None:
    """The loss reads a tensor that no call put out; it stands below the blocks all the same, with no wire to them."""
    result = result_of(report)
    map_, names = result["map"], names_of(result)
    loss = names.index("Functional.mse_loss.0.forward")
    ops = len(map_["parent"]) - len(map_["groups"]["name"])
    block = ops + [result["texts"][at] for at in map_["groups"]["name"]].index("blocks.1 (Block)")
    assert map_["order"][block] < map_["order"][loss]
    assert [names.index("Functional.gelu.1.forward"), loss] in map_["follows"]
    calls = {at for at, mark in enumerate(result["ops"]["placeholder"]) if mark == 0}
    wires = zip(result["wires"]["producer"], result["wires"]["reader"], strict=True)
    assert not [producer for producer, reader in wires if reader == loss and producer in calls]


def test_without_modules_the_passes_are_told_apart(tmp_path: Path) -> None:
    result = document(write_network(tmp_path, modules=False) / "dump.json")
    above = groups_of(result)
    assert above["Tensor.mul_.0.forward"] == ["optimizer"]
    assert above["Functional.gelu.0.forward"] == above["Functional.gelu.0.backward"] == []
    at = names_of(result).index("Functional.gelu.0.backward")
    assert result["map"]["lane"][at] == 1


def test_without_a_backward_nothing_is_the_optimizers(tmp_path: Path) -> None:
    x = tensor(np.ones(4, np.float32))
    path = written(tmp_path, {f"Torch.add.{n}.forward": forward(x, output=[x]) for n in range(3)})
    assert set(map(tuple, groups_of(document(path)).values())) == {()}


def test_calls_are_in_the_order_of_time(tmp_path: Path) -> None:
    names = names_of(document(write_network(tmp_path) / "dump.json"))
    calls = [name for name in json.loads((tmp_path / "step0/rank0/dump.json").read_text())["data"] if name in names]
    assert [name for name in names if name in calls] == calls


# --- what a panel says ------------------------------------------------------------------------------------------------


def test_module_and_source_of_a_call_and_its_backward(report: Path) -> None:
    result = result_of(report)
    modules, sources = texts_of(result, "module"), texts_of(result, "source")
    for name in ("Functional.gelu.1.forward", "Functional.gelu.1.backward"):
        assert modules[name] == "blocks.1 (Block)"
        assert sources[name] == GELU_LINE
    assert texts_of(result, "arguments")["Functional.gelu.1.backward"] == ["approximate='none'"]
    assert texts_of(result, "inputs")["Functional.gelu.1.backward"] == [
        "input.0 float32 [6,8]", "forward.input.0 float32 [6,8]", "forward.output.0 float32 [6,8]",
    ]  # fmt: skip


X = tensor(np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("name", "inputs", "kwargs", "shown"),
    [
        ("Functional.layer_norm", [X, [literal(3)], X, X, literal(1e-5)], {}, ["normalized_shape=[3]", "eps=1e-05"]),
        ("Functional.gelu", [X], {"approximate": literal("tanh")}, ["approximate='tanh'"]),
        ("Functional.softmax", [X], {"dim": literal(-1), "dtype": literal("torch.float32", "torch.dtype")},
         ["dim=-1", "dtype=torch.float32"]),
        ("Torch.cat", [[X, X]], {"dim": literal(0)}, ["dim=0"]),
        ("Tensor.__getitem__", [X, [{"type": "slice", "value": [0, None, 2]}, X]], {}, ["[0::2, float32[2,3]]"]),
        ("Torch.nobody_knows", [X, literal(True), literal(None)], {}, ["input.1=True", "input.2=None"]),
        ("Torch.nobody_knows", [X], {"n": literal("x" * 1000)}, ["n='" + "x" * 159 + "…"]),
    ],
)  # fmt: skip
def test_arguments(tmp_path: Path, name: str, inputs: Sequence[Any], kwargs: Any, shown: Sequence[str]) -> None:
    file = read_msprobe_graph(str(written(tmp_path, {f"{name}.0.forward": forward(*inputs, output=[X], **kwargs)})))
    (lines,) = [arguments_of(op) for op in file.ops if op.name == f"{name}.0.forward"]
    assert [line if "=" in shown[0].partition("[")[0] else line.partition("=")[2] for line in lines] == list(shown)


def test_very_many_arguments_are_cut(tmp_path: Path) -> None:
    call = forward(X, [literal(n) for n in range(100_000)], output=[X], **{f"k{n}": literal(n) for n in range(1000)})
    file = read_msprobe_graph(str(written(tmp_path, {"Torch.nobody_knows.0.forward": call})))
    (lines,) = [lines for op in file.ops if (lines := arguments_of(op))]
    assert len(lines) == 41
    assert lines[-1] == "…"
    assert max(map(len, lines)) < 200


def test_figures_are_shown_where_nothing_was_compared(tmp_path: Path, report: Path) -> None:
    x = np.array([[-1.0, 0.5], [np.inf, 2.0]], np.float32)
    name = "Functional.relu.0.forward"
    result = document(written(tmp_path, {name: forward(tensor(np.ones(2)), output=[tensor(x)])}))
    figures = result["recorded"][str(names_of(result).index(name))]
    assert figures == [["output:0", -1, "inf", "inf", "inf"], ["input.0", 1, 1, 1, pytest.approx(2**0.5, rel=1e-5)]]
    assert result_of(report)["recorded"] == {}


def test_a_report_without_a_benchmark(tmp_path: Path) -> None:
    write_network(tmp_path / "precision_data" / "npu", faulty=True)
    tool("ac", "--report", "report.html", cwd=tmp_path, code=None)
    result = result_of(tmp_path / "report.html")
    assert result["verdict"]["culprit"] == "Functional.gelu.1.forward"
    assert groups_of(result)["Functional.gelu.1.forward"] == ["blocks.1 (Block)"]
    assert result["recorded"]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_modules_within_modules_are_bounded(tmp_path: Path) -> None:
    path = ".".join(f"m{n}" for n in range(5000))
    entries, parents = {}, {}
    for n in range(3):
        entries[f"Torch.add.{n}.forward"] = forward(X, literal(n), output=[X])
        parents[f"Torch.add.{n}.forward"] = f"Module.{path}.Deep.forward.0"
        entries[f"Torch.mul.{n}.forward"] = forward(X, literal(n), output=[X])
        parents[f"Torch.mul.{n}.forward"] = f"Module.m0.m1.Wide{'x' * n}.forward.0"
    above = groups_of(document(written(tmp_path, entries, parents)))
    assert above["Torch.mul.0.forward"] == []  # the module of the whole network is left out
    assert above["Torch.add.0.forward"] == [".".join(f"m{n}" for n in range(12))]


def test_20_000_entries(tmp_path: Path) -> None:
    """Of equal figures nothing is connected but in the order of calls; figures of their own make it a chain."""
    entries: dict[str, Any] = {}
    parents: dict[str, str | None] = {}

    def made(number: int) -> dict[str, Any]:
        return {**X, "Max": float(number), "Norm": float(number)}

    for n in range(10_000):
        name = f"Functional.gelu.{n}.forward"
        entries[name] = forward(made(n), output=[made(n + 1)], approximate=literal("none"))
        parents[name] = f"Module.layers.{n // 10}.act{n % 10}.GELU.forward.0"
    for n in reversed(range(10_000)):
        entries[f"Functional.gelu.{n}.backward"] = {"input": [made(-n - 1)], "output": [made(-n)]}
    result = document(written(tmp_path, entries, parents))
    assert len(result["ops"]["name"]) >= 20_000
    children: dict[int, int] = {}
    for parent in result["map"]["parent"]:
        children[parent] = children.get(parent, 0) + 1
    assert max(children.values()) <= MOST_CHILDREN
    assert len(packed(result)) < 1_500_000
    assert result["recorded"] == {}  # of so many only those that are looked at closely


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_panel_of_a_call(browse: Browse, report: Path) -> None:
    page = browse(report, "map")
    page.ask("report.show(report.state.result.byName.get('Functional.gelu.1.forward'))")
    facts = page.text("#panel .facts")
    assert "blocks.1 (Block)" in facts
    assert GELU_LINE in facts
    assert "approximate='none'" in facts
    tree = "report.parts.map.tree"
    above = page.ask(f"{tree}.ancestors(report.state.result.culprit).map((at) => {tree}.nameOf(at))")
    assert above == ["blocks.1 (Block)"]


def test_a_tensor_is_drawn_plainly(browse: Browse, report: Path) -> None:
    page = browse(report, "map")
    page.ask("report.show(report.state.result.byName.get('blocks.1.up.weight'))")
    assert page.text("#panel .badges") == "parameter"
    assert "repro" not in page.text("#panel")
    assert page.ask("report.parts.map.levels[report.state.result.byName.get('blocks.1.up.weight')]") == -3
    assert "unrecorded" in page.text(".legend")


def test_the_search_knows_modules_and_lines(browse: Browse, report: Path) -> None:
    page = browse(report, "ops")
    page.page.fill("#search", "blocks.1 (block)")
    assert page.ask("report.state.found.length") == 2
    page.page.fill("#search", GELU_LINE)
    assert page.ask("report.state.found.length") == 4
    page.page.fill("#search", "Functional.mse_loss.0.forward")
    page.page.keyboard.press("Enter")
    assert page.ask("report.state.result.ops.name[report.state.op]") == "Functional.mse_loss.0.forward"
    heads = page.text("#tab-ops .grid-head")
    assert "Module" in heads
    assert "Source line" in heads


def test_graphs_of_the_compiler_have_no_columns_of_calls(browse: Browse, demo_report: Path) -> None:
    page = browse(demo_report, "ops")
    assert "Module" not in page.text("#tab-ops .grid-head")
    assert "unrecorded" not in page.text("#tab-map .legend")
    assert "label" not in result_of(demo_report)["ops"]


HOSTILE = (
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'`${7*7}{count}", "a\u202eb", "\x1b[31m",
    "x" * 20_000, "__proto__",
)  # fmt: skip


def test_names_of_modules_do_nothing(browse: Browse, tmp_path: Path) -> None:
    entries: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    stacks: dict[str, Any] = {}
    for number, text in enumerate(HOSTILE):
        for n in (0, 1):
            name = f"Torch.{text}.{2 * number + n}.forward"
            y = {**X, "Max": float(number + n)}
            entries[name] = forward(X, literal(text), output=[y], **{text: literal(text)})
            parents[name] = f"Module.{text}.{text}.{text}.forward.0"
            stacks[str(len(stacks))] = [[name], [f"File /w/{text}.py, line 3, in {text}, \n y"]]
    path = written(tmp_path, entries, parents)
    (tmp_path / "stack.json").write_text(json.dumps(stacks))
    material = Material(title="t", file=read_msprobe_graph(str(path)))
    write_page(str(tmp_path / "page.html"), document_of([material], tool="t", time="t"), [])
    page = browse(tmp_path / "page.html")
    for tab in ("map", "ops"):
        page.page.click(f"#button-{tab}")
        for op in range(page.ask("report.state.result.count")):
            page.ask(f"report.show({op})")
    page.page.click("#button-map")
    page.page.click(f"text={ENGLISH['page.map.open']}")
    assert page.page.locator("#page img, #page script").count() == 0
    assert page.ask("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.ask("document.querySelector('#panel').scrollWidth <= document.querySelector('#panel').clientWidth + 1")


def test_what_is_no_call_is_not_called_undumped(browse: Browse, report: Path) -> None:
    page = browse(report)
    text = page.text("#tab-verdict .gaps")
    assert ENGLISH["page.status.recorded.no_npu_dump"] in text
    assert ENGLISH["page.status.no_npu_dump"] not in text


def test_the_verdict_names_module_and_line(browse: Browse, report: Path) -> None:
    text = browse(report).text("#tab-verdict .verdict dl")
    assert "Module blocks.1 (Block)" in text
    assert f"Source line {GELU_LINE}" in text
