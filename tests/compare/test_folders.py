"""Whole folders: which graph, leaf and benchmark belong together, and how tensors of another order are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import MODEL, STAMP, graph_op, one_op_tree, text_graph, write_dump, write_golden

from precision_tool.lib.compare.folders import CompareOptions, LeafResult, compare_folders
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.table import Row

TIME = 1_772_443_800_000_000


def values(*shape: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Random float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def output_row(result: LeafResult, op: str = "block/add") -> Row:
    """The row of output 0 of an op."""
    (row,) = [row for row in result.rows if row.pair.tensor_index == f"{op}:output:0"]
    return row


def leaf(root: Path, device: int, step: int, **ops: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Path:
    """A dump leaf with one file an op."""
    folder = root / STAMP / str(device) / MODEL / "1" / str(step)
    for number, (name, array) in enumerate(ops.items()):
        write_dump(folder / dump_file_name("Add", name, number, TIME + number, stream_id=0), name, [], [array])
    return folder


@pytest.mark.parametrize("layout", ["NHWC", "NC1HWC0"])
def test_a_benchmark_in_another_order_than_declared_is_seen_by_its_shape(tmp_path: Path, layout: str) -> None:
    data = values(2, 4, 5, 3)
    tree = one_op_tree(
        tmp_path,
        output=data,
        layout=layout,
        origin_layout="NHWC",
        golden=np.ascontiguousarray(data.transpose(0, 3, 1, 2)),
    )
    (result,) = compare_folders(str(tree.dump_dir), str(tree.golden_dir))
    row = output_row(result)
    assert row.metrics is not None
    assert row.metrics.max_absolute_error == 0
    assert "NCHW" in str(row.reason)


def test_axes_in_an_order_that_no_layout_explains_are_not_compared(tmp_path: Path) -> None:
    data = values(2, 4, 5, 3)
    golden = np.ascontiguousarray(data.transpose(3, 0, 1, 2))  # CNHW is no layout
    tree = one_op_tree(tmp_path, output=data, layout="NHWC", origin_layout="NHWC", golden=golden)
    (result,) = compare_folders(str(tree.dump_dir), str(tree.golden_dir))
    assert output_row(result).pair.status is Status.LAYOUT


@pytest.mark.parametrize("layout", ["ND", "FRACTAL_NZ"])
def test_a_transposed_benchmark_is_noted(tmp_path: Path, layout: str) -> None:
    data = values(32, 48)
    tree = one_op_tree(tmp_path, output=data, layout=layout, golden=np.ascontiguousarray(data.T))
    (result,) = compare_folders(str(tree.dump_dir), str(tree.golden_dir))
    assert "shapes differ" in str(output_row(result).reason)


def test_of_two_graphs_in_a_file_the_one_of_the_model_is_used(tmp_path: Path) -> None:
    data = values(4)
    tree = one_op_tree(tmp_path, output=data, golden=data)
    other = text_graph([graph_op("z"), graph_op("block/add", inputs=["z:0"])], name="other")
    tree.graph_path.write_text(other + tree.graph_path.read_text())
    write_golden(tree.golden_dir, "z", 0, -data)
    (result,) = compare_folders(str(tree.dump_dir), str(tree.golden_dir))
    assert result.graph is not None
    assert [graph.name for graph in result.graph.file.graphs] == [MODEL]
    assert [row.pair.slot for row in result.rows if row.pair.op_name == "block/add"] == ["output:0"]


def test_different_steps_are_never_paired_by_their_place(tmp_path: Path) -> None:
    for run, steps in (("a", (0, 1)), ("b", (2, 3))):
        for step in steps:
            leaf(tmp_path / run, 0, step, x=values(4, seed=step))
    results = compare_folders(str(tmp_path / "a"), str(tmp_path / "b"))
    assert all(not result.rows for result in results)
    assert all("step" in str(note) for result in results for note in result.notes)


def test_devices_paired_by_their_place_are_named(tmp_path: Path) -> None:
    for run, devices in (("a", (0, 1)), ("b", (4, 5))):
        for device in devices:
            leaf(tmp_path / run, device, 0, x=values(4))
    results = compare_folders(str(tmp_path / "a"), str(tmp_path / "b"))
    assert [Message("note.compare.other_device", npu="0", golden="4") in result.notes for result in results] == [
        True,
        False,
    ]
    assert Message("note.compare.other_device", npu="1", golden="5") in results[1].notes


def test_two_folders_that_were_named_are_compared_whatever_their_steps(tmp_path: Path) -> None:
    first, second = leaf(tmp_path / "a", 0, 0, x=values(4)), leaf(tmp_path / "b", 0, 7, x=values(4))
    (result,) = compare_folders(str(first), str(second))
    assert Message("note.compare.other_step", npu="0", golden="7") in result.notes
    assert output_row(result, "x").metrics is not None


def test_one_benchmark_for_several_steps_is_said(tmp_path: Path) -> None:
    for step in (0, 1):
        leaf(tmp_path / "npu", 0, step, x=values(4, seed=step))
    write_golden(tmp_path / "tf", "x", 0, values(4))
    results = compare_folders(str(tmp_path / "npu"), str(tmp_path / "tf"))
    assert all(Message("note.compare.one_benchmark") in result.notes for result in results)


def test_swapped_sides_are_guessed(tmp_path: Path) -> None:
    tree = one_op_tree(tmp_path, output=values(4), golden=values(4))
    with pytest.raises(DataNotFoundError) as caught:
        compare_folders(str(tree.golden_dir), str(tree.dump_dir))
    assert "swapped" in caught.value.hint


def test_a_graph_that_was_named_and_is_missing_ends_the_run(tmp_path: Path) -> None:
    for step in (0, 1):
        leaf(tmp_path / "npu", 0, step, x=values(4))
    write_golden(tmp_path / "tf", "x", 0, values(4))
    with pytest.raises(DataNotFoundError, match="no such graph"):
        compare_folders(str(tmp_path / "npu"), str(tmp_path / "tf"), CompareOptions(graph=str(tmp_path / "none.txt")))


@pytest.mark.parametrize(("name", "op"), [("conv_1", "conv_1"), ("conv:0", "conv"), ("conv_0", "conv")])
def test_tf2_names_may_end_in_a_number_of_the_op_or_of_the_output(tmp_path: Path, name: str, op: str) -> None:
    leaf(tmp_path / "npu", 0, 0, **{op: values(4)})
    (tmp_path / "tf").mkdir()
    np.save(tmp_path / "tf" / f"{name}.1772443800000000000.npy", values(4))
    (result,) = compare_folders(str(tmp_path / "npu"), str(tmp_path / "tf"))
    row = output_row(result, op)
    assert row.metrics is not None
    assert row.metrics.max_absolute_error == 0


def test_npy_files_of_other_names_are_counted(tmp_path: Path) -> None:
    leaf(tmp_path / "npu", 0, 0, x=values(4))
    write_golden(tmp_path / "tf", "x", 0, values(4))
    np.save(tmp_path / "tf" / "notes.npy", values(1))
    (result,) = compare_folders(str(tmp_path / "npu"), str(tmp_path / "tf"))
    assert Message("note.data.misnamed", count=1, first="notes.npy") in result.notes


def test_padding_is_no_data_between_two_npu_runs(tmp_path: Path) -> None:
    data = values(2, 3, 4, 3)
    folders = []
    for run, filler in (("a", 0.0), ("b", np.nan)):
        stored = np.full((2, 1, 3, 4, 16), filler, np.float32)
        stored[:, 0, :, :, :3] = data
        folder = tmp_path / run / STAMP / "0" / MODEL / "1" / "0"
        out = OutTensor(data=stored, layout="NC1HWC0", origin_shape=data.shape, origin_layout="NHWC")
        write_dump(folder / dump_file_name("Add", "x", 1, TIME, stream_id=0), "x", [], [out])
        folders.append(folder)
    (result,) = compare_folders(str(folders[0]), str(folders[1]))
    metrics = output_row(result, "x").metrics
    assert metrics is not None
    assert (metrics.max_absolute_error, metrics.non_finite_mismatches) == (0, 0)


def test_two_runs_below_one_folder_are_not_times_of_one_run(tmp_path: Path) -> None:
    """`-lt precision_data/npu` means debug_0 and debug_1, of whatever time."""
    write_golden(tmp_path / "tf", "x", 0, values(4))
    for run, time in (("debug_0", "20260101000000"), ("debug_1", "20260202000000")):
        for stamp in (time, "20250101000000"):
            folder = tmp_path / "npu" / run / "dump" / stamp / "0" / MODEL / "1" / "0"
            write_dump(folder / dump_file_name("Add", "x", 1, TIME, stream_id=0), "x", [], [values(4)])
    results = compare_folders(str(tmp_path / "npu"), str(tmp_path / "tf"))
    assert sorted(Path(result.leaf.path).parts[-7] for result in results) == ["debug_0", "debug_1"]
    assert {result.leaf.time for result in results} == {"20260101000000", "20260202000000"}
