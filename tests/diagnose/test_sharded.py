"""Ranks that split a network otherwise than the benchmark: merged, compared, and the wrong shard named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import tool
from msprobe_files import tensor, write_leaf
from torch_files import torch_bytes

from precision_tool.lib.data.shard_map import ShardMap, read_shard_map
from precision_tool.lib.diagnose.sharded import ShardedRun, ShardFault, ShardFinding, compare_sharded
from precision_tool.lib.messages.errors import FormatError, UsageError

Array = npt.NDArray[Any]
BATCH, WIDTH, HIDDEN, LAYERS = 8, 6, 8, 4
#: What a rank is given: its slice of a tensor, for (tensor, number of slices, slice, axis).
Pick = Callable[[str, int, int], int]


def weights(step: int) -> dict[str, Array]:
    """The parameters at a step; each step changes all of them a little."""
    numbers = np.random.default_rng(7)
    shapes = {f"{layer}.{name}": shape for layer in range(LAYERS) for name, shape in
              (("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN)))}  # fmt: skip
    start = {name: numbers.standard_normal(shape) for name, shape in shapes.items()}
    return {name: (array * (1 + 1e-3 * step)).astype(np.float32) for name, array in start.items()}


class Rank:
    """What msprobe records of one step of one rank."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.arrays: dict[str, Array] = {}
        self.parents: dict[str, str | None] = {}
        self._counts: dict[str, int] = {}

    def _tensor(self, slot: str, array: Array) -> Any:
        array = np.asarray(array, np.float32)
        self.arrays[f"{slot}.pt"] = array
        return tensor(array, f"{slot}.pt")

    def call(self, api: str, module: str, inputs: list[Array], output: Array) -> None:
        count = self._counts[api] = self._counts.get(api, -1) + 1
        name = f"{api}.{count}.forward"
        self.parents[name] = module or None
        self.entries[name] = {
            "input_args": [self._tensor(f"{name}.input.{at}", each) for at, each in enumerate(inputs)],
            "input_kwargs": {},
            "output": [self._tensor(f"{name}.output.0", output)],
        }

    def module(self, path: str, kind: str, count: int, x: Array, output: Array, **parameters: Array) -> None:
        name = f"Module.{path}.{kind}.forward.{count}"
        self.parents[name] = None
        self.entries[name] = {
            "input_args": [self._tensor(f"{name}.input.0", x)], "input_kwargs": {},
            "output": [self._tensor(f"{name}.output.0", output)],
            "parameters": {key: self._tensor(f"{name}.parameters.{key}", each) for key, each in parameters.items()},
        }  # fmt: skip

    def write(self, folder: Path) -> None:
        write_leaf(folder, self.entries, self.arrays, construct=self.parents)


def slice_of(array: Array, parts: int, number: int, axis: int) -> Array:
    """A slice; of a number that does not divide the last one is shorter."""
    return np.array_split(array, parts, axis)[number]


def train(
    folder: Path,
    tp: int = 1,
    dp: int = 1,
    micro: int = 1,
    stages: int = 1,
    fault: str = "",
    steps: int = 1,
    flat: bool = False,
    has_bias: bool = False,
) -> Path:
    """Compute a network of linear layers, column and then row parallel, on some ranks, and write what they record.

    `fault` is `kind:layer:rank`. Ranks of a stage number their layers from 0. A bias is added after the reduction.
    """
    kind, layer_at, rank_at = (*fault.split(":"), "0", "0")[:3] if fault else ("", "0", "0")
    for step in range(steps):
        table, before = weights(step), weights(max(step - 1, 0))
        data = np.random.default_rng(100 + step).standard_normal((BATCH, WIDTH)).astype(np.float32)
        ranks = [Rank() for _ in range(tp * dp * stages)]
        for replica in range(dp):
            batch = slice_of(data, dp, replica, 0)
            for part in range(micro):
                x = slice_of(batch, micro, part, 0)
                copies = [x] * tp
                for layer in range(LAYERS):
                    stage, own = divmod(layer, LAYERS // stages)
                    first = (stage * dp + replica) * tp
                    group = ranks[first : first + tp]

                    def is_at(wanted: str, number: int, layer: int = layer) -> bool:
                        return (kind, int(layer_at), int(rank_at)) == (wanted, layer, number)

                    terms = []
                    for number, rank in enumerate(group):
                        held = (number + 1) % tp if is_at("wrong", first + number) else number
                        values = before if is_at("stale", first + number) else table
                        up, down = values[f"{layer}.up"], values[f"{layer}.down"]
                        up, down = slice_of(up, tp, held, 0), slice_of(down, tp, number, 1)
                        a = copies[number]
                        b = a @ up.T
                        c = b @ down.T
                        path = f"layers.{own}"
                        column, row = (
                            f"Module.{path}.up.Column.forward.{part}",
                            f"Module.{path}.down.Row.forward.{part}",
                        )
                        rank.call("Functional.linear", column, [a, up], b)
                        recorded = slice_of(up.ravel(), dp, replica, 0) if flat else up
                        rank.module(f"{path}.up", "Column", part, a, b, weight=recorded)
                        bias = down[:, 0] * 0 + layer + 1 if has_bias else np.zeros(WIDTH, np.float32)
                        rank.call("Functional.linear", row, [b, down], c + bias if tp == 1 else c)
                        terms.append((rank, row, path, b, c, down))
                    total = np.sum([each[4] for each in terms], 0)
                    nexts = []
                    for number, (rank, row, path, b, c, down) in enumerate(terms):
                        is_kept = is_at("kept", first + number) or (kind == "all_kept" and layer == int(layer_at))
                        if tp > 1:
                            rank.call("Distributed.all_reduce", row, [c], total)
                        y = (c if is_kept else total) + (layer + 1) * has_bias
                        rank.module(f"{path}.down", "Row", part, b, y, weight=down)
                        z = np.tanh(y)
                        rank.call("Torch.tanh", f"Module.{path}.Layer.forward.{part}", [y], z)
                        nexts.append(z)
                    copies = nexts
        for number, rank in enumerate(ranks):
            rank.write(folder / f"step{step}" / f"rank{number}")
    return folder


def compare(npu: Path, golden: Path, **options: Any) -> ShardedRun:
    return compare_sharded(str(npu), str(golden), threshold=0.98, **options)


def first(run: ShardedRun) -> ShardFinding:
    return run.findings[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"), steps=2)


@pytest.mark.parametrize(
    ("options", "slices"),
    [
        ({"tp": 4}, True),
        ({"tp": 2, "dp": 2}, True),
        ({"micro": 4, "stages": 2}, False),
        ({"tp": 2, "stages": 2, "micro": 2}, True),
        ({"tp": 2, "has_bias": True}, True),
        ({"dp": 2, "flat": True}, True),
    ],
)
def test_a_clean_run_agrees_as_whole_tensors(
    tmp_path: Path, whole: Path, options: dict[str, Any], slices: bool
) -> None:
    if options.get("has_bias"):
        whole = train(tmp_path / "gpu", has_bias=True)
    run = compare(train(tmp_path / "npu", **options), whole)
    assert run.findings == ()
    assert run.off == []
    assert len(run.compared) == len(run.rows) == LAYERS * 14
    assert all(row.fit is not None and row.fit.is_right for row in run.rows)
    assert any(row.fit is not None and row.fit.npu.splits for row in run.rows) is slices
    assert run.parts == (options.get("micro", 1), 1)


def test_two_splits_against_each_other(tmp_path: Path) -> None:
    run = compare(train(tmp_path / "npu", tp=4), train(tmp_path / "gpu", tp=2, micro=2))
    assert (run.findings, run.off, run.parts) == ((), [], (1, 2))
    cut = {row.name for row in run.rows if row.fit is not None and row.fit.npu.splits and row.fit.golden.splits}
    assert "Module.layers.0.up.Column.forward.0.parameters.weight" in cut


@pytest.mark.parametrize(
    ("options", "fault", "named", "ranks", "tensor"),
    [
        ({"tp": 4}, "wrong:1:2", ShardFault.WRONG_SLICE, (2,), "layers.1.up"),
        ({"tp": 2, "stages": 2}, "wrong:3:3", ShardFault.WRONG_SLICE, (3,), "layers.3.up"),
        ({"tp": 2}, "all_kept:1", ShardFault.NOT_REDUCED, (0, 1), "Functional.linear.3."),
        ({"tp": 4}, "kept:2:3", ShardFault.NOT_REDUCED, (3,), "Functional.linear.5."),
        ({"tp": 2, "dp": 2}, "stale:1:2", ShardFault.STALE, (2,), "layers.1."),
    ],
)
def test_the_wrong_shard_is_named(
    tmp_path: Path, whole: Path, options: dict[str, Any], fault: str, named: ShardFault, ranks: tuple[int, ...],
    tensor: str,
) -> None:  # fmt: skip
    steps = 2 if named is ShardFault.STALE else 1
    run = compare(train(tmp_path / "npu", steps=steps, fault=fault, **options), whole)
    found = first(run)
    assert (found.fault, found.ranks, tensor in found.tensor) == (named, ranks, True)
    assert found.step == (1 if named is ShardFault.STALE else 0)
    if named is ShardFault.WRONG_SLICE:
        parts = options["tp"]
        position = ranks[0] % parts
        assert (found.axis, found.parts, found.expected, found.held) == (
            0,
            parts,
            (position,),
            ((position + 1) % parts,),
        )


def test_a_call_that_computes_otherwise_on_one_rank(tmp_path: Path, whole: Path) -> None:
    npu = train(tmp_path / "npu", tp=2)
    data = json.loads((npu / "step0/rank1/dump.json").read_text())["data"]
    name = data["Torch.tanh.2.forward"]["output"][0]["data_name"]
    (npu / "step0/rank1/dump_tensor_data" / name).unlink()
    run = compare(npu, whole)
    assert [row.name for row in run.rows if row.reason is not None] == ["Torch.tanh.2.forward.output.0"]
    assert (run.findings, run.off) == ((), [])


def test_placements_that_were_recorded(tmp_path: Path, whole: Path) -> None:
    npu = train(tmp_path / "npu", tp=2, fault="wrong:0:0")
    assert first(compare(npu, whole)).ranks == (0,)
    name = "Functional.linear.0.forward"
    for dump in npu.rglob("dump.json"):
        document = json.loads(dump.read_text())
        data = document["data"]
        data["Module.layers.0.up.Column.forward.0"]["parameters"]["weight"] |= {
            "device_mesh": [[0], [1]], "placements": [{"Shard": {"dim": -2}}, {"Replicate": {}}],
        }  # fmt: skip
        data[name]["input_args"][1] |= {"device_mesh": [1, 0], "placements": [{"Shard": {"dim": 0}}]}
        dump.write_text(json.dumps(document))
    rows = {row.name: row for row in compare(npu, whole).rows}
    weight, given = rows["Module.layers.0.up.Column.forward.0.parameters.weight"], rows[f"{name}.input.1"]
    assert [each.positions for each in weight.ranks] == [(0,), (1,)]
    assert [each.positions for each in given.ranks] == [(1,), (0,)]
    assert (given.ranks[0].distance, given.ranks[1].distance > 1) == (0, True)


def test_other_values_on_one_rank(tmp_path: Path, whole: Path) -> None:
    npu = train(tmp_path / "npu", dp=2)
    for name in ("Functional.linear.0.forward.input.0", "Module.layers.0.up.Column.forward.0.input.0"):
        path = npu / "step0/rank1/dump_tensor_data" / f"{name}.pt"
        path.write_bytes(torch_bytes(np.full((BATCH // 2, WIDTH), 3, np.float32)))
    found = first(compare(npu, whole))
    assert (found.fault, found.ranks) == (ShardFault.OTHER_VALUES, (1,))
    assert found.tensor == "Functional.linear.0.forward.input.0"


def test_the_user_says_what_shapes_do_not(tmp_path: Path, whole: Path) -> None:
    npu = train(tmp_path / "npu", tp=2, stages=2)
    path = tmp_path / "split.json"
    path.write_text(json.dumps({
        "tensors": [
            {"tensor": "*.down.*.weight", "axis": 1, "parts": 2}, {"tensor": "*linear.1.*output.0", "sum": True},
        ],
        "modules": {"layers": {"2": 2, "3": 2}},
        "micro_batches": [1, 1],
    }))  # fmt: skip
    run = compare(npu, whole, shard_map=read_shard_map(str(path)))
    assert (run.findings, run.off) == ((), [])
    path.write_text(json.dumps({"tensors": [{"tensor": "*.up.*.weight", "axis": 0, "order": [1, 0]}]}))
    turned = compare(npu, whole, shard_map=read_shard_map(str(path)))
    assert first(turned).fault is ShardFault.WRONG_SLICE


@pytest.mark.parametrize(
    "text", ["[", "[]", '{"tensor": []}', '{"tensors": [{"axis": 0}]}', '{"tensors": [{"tensor": "a", "axis": -1}]}',
             '{"modules": {"layers": {"x": 1}}}', '{"micro_batches": [1]}'],
)  # fmt: skip
def test_a_file_that_is_not_understood(tmp_path: Path, text: str) -> None:
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(FormatError):
        read_shard_map(str(path))


def test_other_data_is_refused(tmp_path: Path, whole: Path) -> None:
    assert ShardMap().rule_of("any") is None
    with pytest.raises(UsageError):
        compare(tmp_path, whole)
    with pytest.raises(UsageError):
        compare(train(tmp_path / "npu"), whole, wants=lambda step: step > 5)


def test_a_study_merges_ranks_that_the_benchmark_has_not(tmp_path: Path, whole: Path) -> None:
    train(tmp_path / "npu", tp=2, fault="wrong:2:1")
    (tmp_path / "gpu").symlink_to(whole)
    study = json.loads(tool("--data", tmp_path, "ac", "--all", "--json", "--step", "0", cwd=tmp_path).out)
    assert study["sharded"]["findings"][0]["ranks"] == [1]


def test_the_command(tmp_path: Path, whole: Path) -> None:
    train(tmp_path / "npu", tp=2, fault="wrong:2:1")
    (tmp_path / "gpu").symlink_to(whole)
    screen = tool("--data", tmp_path, "ac", "--sharded", cwd=tmp_path).out
    assert "Module.layers.2.up.Column.forward.0.parameters.weight" in screen
    document = json.loads(tool("--data", tmp_path, "ac", "--sharded", "--json", "--fail", cwd=tmp_path, code=1).out)
    assert document["findings"][0]["fault"] == "wrong_slice"
    assert {"tensor", "placement", "distance", "ranks"} <= document["tensors"][0].keys()
    assert "--judge" in tool("--data", tmp_path, "ac", "--sharded", "--judge", "all", cwd=tmp_path, code=2).err
