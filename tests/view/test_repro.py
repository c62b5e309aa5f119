"""The reproduction of one op: complete, readable by numpy alone, and its script says what the verdict says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from builders import Array, one_op_tree
from command_line import tool

from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.diagnose.checked_ops import references_of
from precision_tool.lib.messages import Message

X = (np.arange(24, dtype=np.float32).reshape(4, 6) / 3).astype(np.float16)
Y = np.full((4, 6), 0.1, np.float16)
SUM = (X.astype(np.float64) + Y.astype(np.float64)).astype(np.float16)


def check(folder: Path) -> tuple[int, str]:
    """Runs the script as somebody without the package does: in isolated mode, from elsewhere."""
    run = subprocess.run(
        [sys.executable, "-I", "-W", "error", str(folder / "check.py")],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    return run.returncode, run.stdout


def reproduced(folder: Path) -> tuple[int, str]:
    """The exit code and the output of the script on the op below `folder`."""
    tool("repro", "block/add", "out", cwd=folder)
    return check(folder / "out")


def tree(root: Path, output: Array, op_type: str = "Add", golden: Array | None = None) -> None:
    one_op_tree(
        root / "precision_data", output=output, golden=SUM.astype(np.float32) if golden is None else golden,
        inputs=[X, Y], input_goldens=[X.astype(np.float32), Y.astype(np.float32)], op_type=op_type,
    )  # fmt: skip


def wrong_sum() -> Array:
    wrong = SUM.copy()
    wrong[2, 3] += 1
    return wrong


def test_a_wrong_op(tmp_path: Path) -> None:
    tree(tmp_path, wrong_sum())
    run = tool("repro", "block/add", "out", cwd=tmp_path)
    assert "reproduction: out" in run.out
    folder = tmp_path / "out"
    np.testing.assert_array_equal(np.load(folder / "input_0.npy"), X)
    assert np.load(folder / "input_0.npy").dtype == np.float16
    np.testing.assert_array_equal(np.load(folder / "input_1.npy"), Y)
    np.testing.assert_array_equal(np.load(folder / "output_0.npu.npy"), wrong_sum())
    np.testing.assert_array_equal(np.load(folder / "output_0.benchmark.npy"), SUM.astype(np.float64))
    np.testing.assert_array_equal(np.load(folder / "output_0.float64.npy"), X.astype(np.float64) + Y.astype(np.float64))
    op = json.loads((folder / "op.json").read_text("utf-8"))
    assert (op["schema"], op["op"], op["type"], op["recomputed_as"]) == (1, "block/add", "Add", ["Add"])
    assert [one["from"] for one in op["inputs"]] == ["own", "own"]
    code, text = check(folder)
    assert code == 1
    assert "1 of 24 elements are beyond" in text
    assert f"[2, 3]: NPU {float(wrong_sum()[2, 3]):.7g}, should be" in text
    assert text.count("FAILS") == 4
    assert len((folder / "README.md").read_text("utf-8").splitlines()) <= 12


def test_a_right_op(tmp_path: Path) -> None:
    tree(tmp_path, SUM)
    code, text = reproduced(tmp_path)
    assert code == 0
    assert "L0 (at most 10, 2, 2): passes" in text
    assert "100.00 % of the elements" in text
    assert "0 of 24 elements are beyond" in text


@pytest.mark.parametrize(("odd", "code"), [(None, 0), (9.0, 1), (np.nan, 1)])
def test_a_kernel_that_stores_each_stages_result(tmp_path: Path, odd: float | None, code: int) -> None:
    """The squares overflow, vanish and lose digits in float16: the verdict takes that, and so does the script."""
    x = np.array([300.0, 1e-5, 1e-3, 2.0, 3.0], np.float16)
    with np.errstate(all="ignore"):
        output = np.sqrt((x.astype(np.float64) ** 2).astype(np.float16).astype(np.float64)).astype(np.float16)
    assert np.isinf(output[0])
    assert output[1] == 0
    if odd is not None:
        output[4] = odd
    one_op_tree(
        tmp_path / "precision_data", output=output, golden=x.astype(np.float32), inputs=[x], op_type="Square",
        op_name="e/SquareSqrt", original_names=("e/Square", "e/Sqrt"),
    )  # fmt: skip
    tool("repro", "e/SquareSqrt", "out", cwd=tmp_path)
    op = json.loads((tmp_path / "out" / "op.json").read_text("utf-8"))
    assert (op["state"] == "right") is (code == 0)
    found, text = check(tmp_path / "out")
    assert found == code
    assert "5 elements are beyond" in text
    assert ("each stage stored in float16: 0 beyond 16 x rounding" in text) is (code == 0)
    assert ("that counts" in text) is (code == 0)
    assert "output_*.stages.npy" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_an_op_without_a_formula(tmp_path: Path) -> None:
    tree(tmp_path, SUM, op_type="NobodyKnowsIt")
    run = tool("repro", "block/add", "out", cwd=tmp_path)
    assert "not recomputed" in run.err
    code, text = check(tmp_path / "out")
    assert code == 2
    assert "not recomputed" in text


def test_nan_and_inf(tmp_path: Path) -> None:
    odd = SUM.copy()
    odd[0, 0], odd[1, 1] = np.nan, np.inf
    tree(tmp_path, odd)
    code, text = reproduced(tmp_path)
    assert code == 1
    assert "2 of 24 elements are beyond" in text


def pair_tree(root: Path, output: Array, inputs: list[Array], op_type: str = "Add") -> None:
    one_op_tree(root / "precision_data", output=output, golden=output, inputs=inputs, op_type=op_type)


def test_what_is_beyond_the_types_range_is_not_wrong(tmp_path: Path) -> None:
    large = np.array([60000, 2, -60000, 4], np.float16)
    with np.errstate(over="ignore"):
        doubled = large + large
    assert np.isinf(doubled).sum() == 2
    pair_tree(tmp_path, doubled, [large, large])
    code, text = reproduced(tmp_path)
    assert "2 of 4 elements left out: the true result is beyond the type's range" in text
    assert "0 of 2 elements are beyond" in text
    assert code == 0


def test_what_is_left_out_hides_nothing_else(tmp_path: Path) -> None:
    large = np.array([60000, 2, 3, 4], np.float16)
    wrong = np.array([np.inf, 4, 7, 8], np.float16)
    pair_tree(tmp_path, wrong, [large, large])
    code, text = reproduced(tmp_path)
    assert "1 of 3 elements are beyond" in text
    assert code == 1


@pytest.mark.parametrize(
    ("output", "value", "op_type"),
    [
        (np.array([5, 7], np.float32), np.array([1000, 2000], np.float32), "Exp"),  # beyond float64
        (np.array([np.inf, np.inf], np.float16), np.array([60000, 50000], np.float16), "Add"),  # beyond float16
    ],
)
def test_where_no_element_can_be_compared(tmp_path: Path, output: Array, value: Array, op_type: str) -> None:
    inputs = [value] if op_type == "Exp" else [value, value]
    pair_tree(tmp_path, output, inputs, op_type)
    code, text = reproduced(tmp_path)
    assert code == 2
    assert "nothing to compare" in text
    assert "right" not in text


def test_inputs_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precision_tool.lib.data.settings import Settings
    from precision_tool.lib.diagnose.op_values import RunValues
    from precision_tool.lib.messages.errors import UsageError
    from precision_tool.lib.session import Session
    from precision_tool.lib.view import reproduction

    tree(tmp_path, SUM)
    session = Session(Settings(data=tmp_path / "precision_data"))
    (hit,) = session.find_ops("block/add")
    beside = references_of(session.data, hit.run)

    def no_memory(*arguments: object, **options: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(reproduction, "_MOST_ELEMENTS", 50)  # the output has 24, as each input
        with pytest.raises(UsageError, match="72 elements are too many"):
            reproduction.reproduction(hit.run, hit.op, *beside)
    with monkeypatch.context() as patched:
        patched.setattr(RunValues, "load", no_memory)
        with pytest.raises(UsageError, match="too large"):
            reproduction.reproduction(hit.run, hit.op, *beside)
    with monkeypatch.context() as patched:
        patched.setattr(reproduction, "misfit", no_memory)
        assert reproduction.reproduction(hit.run, hit.op, *beside).reason == Message("reason.out_of_memory")


def test_the_home_is_the_home(tmp_path: Path) -> None:
    tree(tmp_path, SUM)
    (tmp_path / "home").mkdir()
    home = {"HOME": str(tmp_path / "home")}
    tool("repro", "block/add", "~/out", cwd=tmp_path, env=home)
    tool("ac", "-c", "--report", "~/a.html", cwd=tmp_path, env=home)
    tool("report", "-o", "~/b.html", cwd=tmp_path, env=home)
    tool("report", "--model-explorer", "~/c.json", cwd=tmp_path, env=home)
    assert {"out", "a.html", "b.html", "c.json"} <= {path.name for path in (tmp_path / "home").iterdir()}
    assert not (tmp_path / "~").exists()


def test_bfloat16_is_written_as_float32(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    stored = OutTensor(data=values.astype(ml_dtypes.bfloat16), origin_shape=(8,))
    one_op_tree(
        tmp_path / "precision_data", output=stored, origin_shape=(8,), inputs=[stored], op_type="Relu", op_name="relu"
    )
    tool("repro", "relu", "out", cwd=tmp_path)
    array = np.load(tmp_path / "out" / "output_0.npu.npy")
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, values)
    assert check(tmp_path / "out")[0] == 0


def test_the_default_place_is_never_overwritten(tmp_path: Path) -> None:
    tree(tmp_path, SUM)
    for _ in range(2):
        tool("repro", "block/add", cwd=tmp_path)
    made = sorted(path.name for path in (tmp_path / "precision_data" / "temp" / "repro").iterdir())
    assert made == ["block_add", "block_add_2"]


def test_bad_input(tmp_path: Path) -> None:
    tree(tmp_path, SUM)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine", "ascii")
    dump = tmp_path / "precision_data" / "npu" / "debug_0" / "dump" / "x"
    for words, what in (
        (["repro", "block/add", "full"], "the folder already exists"),
        (["repro", "block/add", str(dump)], "only read"),
        (["repro", "block/add", "/proc/x/y"], "cannot be written"),
        (["repro", "nobody"], "nobody"),
        (["repro", "NetOutput"], "was dumped"),
        (["repro"], "OP"),
    ):
        assert what in tool(*words, cwd=tmp_path, code=2).text
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert not dump.exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precision_tool.lib.data.settings import Settings
    from precision_tool.lib.messages.errors import OutputError
    from precision_tool.lib.session import Session
    from precision_tool.lib.view.reproduction import reproduction, write_repro

    tree(tmp_path, SUM)
    session = Session(Settings(data=tmp_path / "precision_data"))
    (hit,) = session.find_ops("block/add")
    repro = reproduction(hit.run, hit.op, *references_of(session.data, hit.run))

    def no_space(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.save", no_space)
    with pytest.raises(OutputError, match="No space left"):
        write_repro(str(tmp_path / "out" / "deep"), repro)
    assert list((tmp_path / "out").iterdir()) == []
