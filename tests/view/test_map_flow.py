"""The map of a made residual network with its backward pass: everything leads with the flow, also when all is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_browser import wait_until

from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op
from precision_tool.lib.view.report_document import Material, document_of
from precision_tool.lib.view.report_page import write_page

pytestmark = pytest.mark.slow

STAGES, BLOCKS = 3, 4


def residual_ops() -> Iterator[Op]:
    """One training step; as compilers do, the variables are numbered first."""
    blocks = [f"net/stage{stage}/block{block}" for stage in range(STAGES) for block in range(BLOCKS)]
    layers = [f"{block}/{layer}" for block in blocks for layer in ("a", "b")]
    numbers = iter(range(100_000))

    def op(name: str, type_: str, *inputs: str) -> Op:
        return Op(name=name, type=type_, id=next(numbers), inputs=tuple(Edge(producer=one, index=0) for one in inputs))

    yield op("images", "Data")
    yield op("rate", "Constant")
    for layer in layers:
        yield op(f"{layer}/kernel", "Variable")
    x = "images"
    for block in blocks:
        start = x
        for layer in (f"{block}/a", f"{block}/b"):
            yield op(f"{layer}/Conv2D", "Conv2D", x, f"{layer}/kernel")
            yield op(f"{layer}/Relu", "Relu", f"{layer}/Conv2D")
            x = f"{layer}/Relu"
        yield op(f"{block}/add", "Add", x, start)
        x = f"{block}/add"
    yield op("loss", "ReduceMeanD", x)
    yield op("gradients/loss_grad/Tile", "TileD", "loss")
    gradient = "gradients/loss_grad/Tile"
    for block in reversed(blocks):
        start = gradient
        for layer in (f"{block}/b", f"{block}/a"):
            yield op(f"gradients/{layer}/Relu_grad/ReluGrad", "ReluGrad", gradient, f"{layer}/Relu")
            after = f"gradients/{layer}/Relu_grad/ReluGrad"
            yield op(f"gradients/{layer}/Conv2D_grad/Filter", "Conv2DBackpropFilterD", after, f"{layer}/Relu")
            yield op(f"gradients/{layer}/Conv2D_grad/Input", "Conv2DBackpropInputD", after, f"{layer}/kernel")
            gradient = f"gradients/{layer}/Conv2D_grad/Input"
            filters = f"gradients/{layer}/Conv2D_grad/Filter"
            yield op(f"train/update_{layer}/Apply", "ApplyMomentum", f"{layer}/kernel", "rate", filters)
        yield op(f"gradients/{block}/AddN", "AddN", gradient, start)
        gradient = f"gradients/{block}/AddN"


#: For each edge between two shown items of one lane: whether it leads down (of the backward pass: up) within a column,
#: or on to a column farther right (left).
AGAINST = """(() => { const t = report.parts.map.tree; const found = []; let count = 0;
  for (const { from, to, wires, isSide } of t.inner.flat()) {
    if (from < 0 || to < 0 || !wires || isSide || !t.state[from] || t.lane[from] !== t.lane[to]) continue;
    if (t.parent[from] >= 0 && t.state[t.parent[from] + t.ops] !== 2) continue;
    const [a, b] = t.lane[from] === 1 ? [to, from] : [from, to];
    count += 1;
    const isBelow = t.y[a] + t.h[a] <= t.y[b];
    const isNextColumn = t.x[a] + t.w[a] <= t.x[b] && t.y[b] < t.y[a] + t.h[a];
    if (!isBelow && !isNextColumn) found.push([t.nameOf(from), t.nameOf(to)]);
  } return [count, found]; })()"""
LEVEL = """(() => { const t = report.parts.map.tree; const middle = (i) => t.y[i] + t.h[i] / 2;
  return [...t.mirrors].filter(([b]) => t.state[b])
    .map(([b, f]) => [t.nameOf(b), t.nameOf(f), middle(b) - middle(f)]); })()"""


@pytest.mark.parametrize("width", [1400, 390])
def test_no_edge_goes_against_the_flow(browse: Callable[..., Any], tmp_path: Path, width: int) -> None:
    ops = tuple(residual_ops())
    material = Material(title="t", file=GraphFile(path="g", graphs=(Graph(name="g", ops=ops),)))
    write_page(str(tmp_path / "map.html"), document_of([material], tool="t", time="t"), [])
    page = browse(tmp_path / "map.html", "map", viewport={"width": width, "height": 900})
    level = page.ask(LEVEL)
    assert [(forward, backward) for backward, forward, _ in level if "stage" in forward] == [
        (f"net/stage{stage}", f"gradients/net/stage{stage}") for stage in reversed(range(STAGES))
    ]
    assert all(abs(distance) < 1 for *_, distance in level)
    count, against = page.ask(AGAINST)
    assert (count >= 2 * STAGES, against) == (True, [])
    page.ask("report.parts.map.openAll()")
    wait_until(page.page, "!report.parts.map.isBusy")
    count, against = page.ask(AGAINST)
    assert (count > STAGES * BLOCKS * 12, against) == (True, [])
    # No needle, and opened where it can be read.
    shape = page.ask("(() => { const t = report.parts.map.tree; return t.width / t.height; })()")
    assert 0.2 < shape < 6
    assert page.ask("report.parts.map.view.k") >= 0.6
