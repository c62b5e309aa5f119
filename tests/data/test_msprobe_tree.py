"""Where msprobe's dumps lie: every level of the tree may be named, and tensors are read from their folder alone."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from msprobe_files import forward, tensor, write_leaf
from msprobe_python import dump_with_msprobe

from precision_tool.lib.data.msprobe_tree import MsprobeLeaf, find_msprobe
from precision_tool.lib.io.msprobe_dump import data_type_of, read_calls, read_dump_index
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.model.msprobe import RecordedCall, RecordedTensor

ARRAY = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)


def leaf(folder: Path, name: str = "a.pt") -> Path:
    return write_leaf(folder, {"Torch.a.0.forward": forward(tensor(ARRAY, name))}, {"a.pt": ARRAY})


def only_tensor(found: MsprobeLeaf) -> RecordedTensor:
    (call,) = read_calls(read_dump_index(found.dump))
    assert isinstance(call, RecordedCall)
    ((_, recorded),) = call.tensors()
    return recorded


@pytest.mark.slow
def test_a_dump_of_msprobe_itself(tmp_path: Path) -> None:
    run = find_msprobe(str(dump_with_msprobe(tmp_path)))
    assert (run.steps, run.ranks, len(run.leaves)) == ((0, 1), (), 2)
    count = 0
    for each in run.leaves:
        assert each.has_tensors and each.stacks and each.construct and each.process  # noqa: PT018
        for call in read_calls(read_dump_index(each.dump)):
            assert isinstance(call, RecordedCall)
            for _, recorded in call.tensors():
                read = each.read_tensor(recorded)
                assert (read.shape, read.dtype) == (recorded.shape, data_type_of(recorded.dtype))
                count += 1
    assert count > 50


def test_every_level_may_be_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for side in ("npu", "gpu"):
        for step in (0, 2, 10):
            for rank in (0, 1):
                leaf(data / side / f"step{step}" / f"rank{rank}")
    npu = data / "npu"
    everything = find_msprobe(str(data))
    assert everything.roots == (str(data / "gpu"), str(npu))
    assert len(everything.leaves) == 12
    run = find_msprobe(str(npu))
    assert (run.roots, run.steps, run.ranks, run.notes) == ((str(npu),), (0, 2, 10), (0, 1), ())
    assert [(each.step, each.rank) for each in run.leaves] == [(s, r) for s in (0, 2, 10) for r in (0, 1)]
    one_step = find_msprobe(str(npu / "step2"))
    assert (one_step.roots, one_step.steps, one_step.ranks) == ((str(npu),), (2,), (0, 1))
    (last,) = find_msprobe(str(npu / "step10" / "rank1")).leaves
    assert (last.root, last.step, last.rank, last.process) == (str(npu), 10, 1, None)


def test_other_names_of_folders(tmp_path: Path) -> None:
    """A process where training is not distributed, the modes of MindSpore, and a rank's folder under another name."""
    for place in ("step0/proc4711", "pynative/step1/rank3", "copied"):
        leaf(tmp_path / place)
    found = {each.path: each for each in find_msprobe(str(tmp_path)).leaves}
    numbers = [(each.step, each.rank, each.process) for each in found.values()]
    assert sorted(numbers, key=str) == [(0, None, 4711), (1, 3, None), (None, None, None)]
    assert found[str(tmp_path / "pynative/step1/rank3")].root == str(tmp_path / "pynative")


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    (tmp_path / "step1" / "dump.json").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataNotFoundError):
            find_msprobe(str(place))


def test_a_link_to_a_folder_above(tmp_path: Path) -> None:
    leaf(tmp_path / "step0" / "rank0")
    (tmp_path / "step0" / "again").symlink_to(tmp_path)
    assert len(find_msprobe(str(tmp_path)).leaves) == 1


def test_a_tensor(tmp_path: Path) -> None:
    leaf(tmp_path / "step0" / "rank0")
    (found,) = find_msprobe(str(tmp_path)).leaves
    read = found.read_tensor(only_tensor(found))
    assert (read.dtype, read.shape) == ("bfloat16", (2, 3))
    with open_bytes(read) as file:
        assert file.read_at(read.offset, read.nbytes) == ARRAY.tobytes()


def test_a_tensor_of_mindspore(tmp_path: Path) -> None:
    leaf(tmp_path, "a.npy")
    np.save(tmp_path / "dump_tensor_data" / "a.npy", np.ones((2, 3), np.float32))
    (found,) = find_msprobe(str(tmp_path)).leaves
    assert found.read_tensor(only_tensor(found)).dtype == "float32"


@pytest.mark.parametrize(
    "name",
    ["../a.pt", "/etc/passwd", "..", ".", "x/a.pt", "x\\a.pt", "..\\a.pt", "a", "a.pkl", "a\0.pt", "b" * 5000 + ".pt",
     ".a.pt"],
)  # fmt: skip
def test_names_that_are_not_those_of_tensors(tmp_path: Path, name: str) -> None:
    leaf(tmp_path / "rank0", name)
    (tmp_path / "rank0" / "a.pt").write_bytes(b"")
    (found,) = find_msprobe(str(tmp_path)).leaves
    with pytest.raises(FormatError) as caught:
        found.read_tensor(only_tensor(found))
    assert caught.value.kind == "data.msprobe.name"


def test_tensors_that_are_missing(tmp_path: Path) -> None:
    for name, place in (("gone.pt", "a"), ("", "b")):
        leaf(tmp_path / place, name)
        (found,) = find_msprobe(str(tmp_path / place)).leaves
        with pytest.raises(DataNotFoundError):
            found.read_tensor(only_tensor(found))
