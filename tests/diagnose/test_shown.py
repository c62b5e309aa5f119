"""What `ls` and `ni` show of a kept verdict, and what a verdict says of what was not dumped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import by_tensor, table, tool
from faults import negated
from tiny_network import layers, numbers


def newest_result(folder: Path) -> Path:
    return max((folder / "precision_data").rglob("result_*.csv"))


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """A folder with a wrong op that was compared, and not judged."""
    layers().with_part("one/MatMul", wrong=negated).write(tmp_path / "precision_data")
    tool("vc", cwd=tmp_path)
    return tmp_path


@pytest.fixture
def judged(compared: Path) -> Path:
    tool("ac", "-c", cwd=compared)
    return compared


def test_ls_wrong(judged: Path) -> None:
    run = tool("ls", "--wrong", cwd=judged)
    assert "1 of 16 ops" in run.out
    assert "one/MatMul" in run.out
    assert "two/MatMul" not in run.out
    # Its followers are below the threshold and right.
    assert "one/Relu" in tool("ls", "--below", "0.999", cwd=judged).out


def test_ls_without_a_verdict(compared: Path) -> None:
    run = tool("ls", "--wrong", cwd=compared, code=2)
    assert "the newest result has no verdict yet" in run.err
    assert "run `ac -c` first" in run.err
    assert "own error" not in tool("ls", cwd=compared).out


def test_ls_refuses_it_for_dump_files(judged: Path) -> None:
    assert "--wrong is for ops" in tool("ls", "dump", "--wrong", cwd=judged, code=2).err


def test_ls_has_the_own_error(judged: Path) -> None:
    lines = tool("ls", cwd=judged).out.splitlines()
    head = next(line for line in lines if "own error" in line)
    column = slice(head.index("own error"), head.index("own error") + len("own error"))
    cells = {line.split()[1]: line[column].strip() for line in lines if line.strip()[:1].isdigit()}
    assert cells["Variable"] == "-"  # computes nothing
    assert cells["Tanh"].endswith("%")
    (graph,) = json.loads(tool("ls", "--json", cwd=judged).out)["graphs"]
    ops = {op["name"]: op for op in graph["ops"]}
    states = [ops[name]["state"] for name in ("one/MatMul", "one/Relu", "one/kernel")]
    assert states == ["wrong", "right", None]
    assert ops["one/MatMul"]["own_error"] > 0.1 > ops["one/Relu"]["own_error"]
    assert ops["one/kernel"]["own_error"] is None


@pytest.mark.parametrize("columns", [80, 120])
def test_ls_keeps_to_the_width(judged: Path, columns: int) -> None:
    lines = tool("ls", cwd=judged, columns=columns).out.splitlines()
    assert max(len(line) for line in lines if "precision_data/" not in line) <= columns


def test_a_result_without_a_verdict_hides_an_older_one(judged: Path) -> None:
    """A newer comparison may be of other dumps: what an older verdict says is not told of them."""
    tool("vc", cwd=judged)
    assert "own error" not in tool("ls", cwd=judged).out


def test_ni_shows_what_was_said_of_the_op(judged: Path) -> None:
    wrong = tool("ni", "one/MatMul", cwd=judged).text
    assert "computes incorrectly" in wrong
    assert "of output 0, recomputed as MatMulV2 from its own inputs" in wrong
    assert "from its inputs" in wrong
    assert "own error of the benchmark" in wrong  # the benchmark
    assert "computes correctly" in tool("ni", "one/Relu", cwd=judged).text
    (op,) = json.loads(tool("ni", "one/MatMul", "--json", cwd=judged).out)["ops"]
    assert op["verdict"]["state"] == "wrong"
    assert op["verdict"]["own_error"] > 100 * op["verdict"]["rounding"]


def test_ni_says_why_an_op_was_not_recomputed(judged: Path) -> None:
    (op,) = json.loads(tool("ni", "drop/random_uniform/RandomUniform", "--json", cwd=judged).out)["ops"]
    assert op["verdict"]["state"] == "not_recomputed"
    assert op["verdict"]["own_error"] is None
    shown = tool("ni", "drop/random_uniform/RandomUniform", cwd=judged).text
    assert "not recomputed" in shown
    assert op["verdict"]["reason"] in shown


def test_ni_judges_the_op_itself(compared: Path) -> None:
    """Without a verdict on the run, and without a benchmark too."""
    assert "computes incorrectly" in tool("ni", "one/MatMul", cwd=compared).text
    (op,) = json.loads(tool("ni", "one/Relu", "--json", cwd=compared).out)["ops"]
    assert op["verdict"]["state"] == "right"
    assert op["verdict"]["fed"] > 0.1 > op["verdict"]["own_error"]  # it is fed what is wrong, and does it right
    assert op["verdict"]["benchmark_own"] < 1e-6
    shutil.rmtree(compared / "precision_data" / "tf")
    (op,) = json.loads(tool("ni", "one/MatMul", "--json", cwd=compared).out)["ops"]
    assert (op["verdict"]["state"], op["verdict"]["fed"]) == ("wrong", None)
    assert {one["benchmark"] for one in op["elements"]} == {None}
    (op,) = json.loads(tool("ni", "one/kernel", "--json", cwd=compared).out)["ops"]
    assert (op["verdict"], op["elements"]) == (None, [])  # it computes nothing


def test_ni_shows_elements_as_they_should_be(compared: Path) -> None:
    """The first four, and the four that are farthest off: of both sides, and by the op's own inputs in float64."""
    x, kernel = (numbers(8, 12, seed=1), numbers(12, 16, seed=2, scale=0.3))
    true = x.astype(np.float16).astype(float) @ kernel.astype(np.float16).astype(float)
    got = negated(true.astype(np.float16))
    golden = (x.astype(float) @ kernel.astype(float)).astype(np.float32)
    (op,) = json.loads(tool("ni", "one/MatMul", "--json", cwd=compared).out)["ops"]
    first = [one for one in op["elements"] if not one["is_worst"]]
    assert [tuple(one["place"]) for one in first] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    worst = [tuple(one["place"]) for one in op["elements"] if one["is_worst"]]
    off = np.abs(got.astype(float) - true)
    assert worst == [np.unravel_index(at, off.shape) for at in np.argsort(-off, axis=None, kind="stable")[:4]]
    for one in op["elements"]:
        place = tuple(one["place"])
        assert one["npu"] == float(got[place])
        assert one["recomputed"] == pytest.approx(true[place], rel=1e-12)
        assert one["benchmark"] == pytest.approx(golden[place], rel=1e-6)
    lines = tool("ni", "one/MatMul", cwd=compared).out.splitlines()
    line = next(line for line in lines if line.startswith("worst"))
    assert line.split()[1:] == [
        f"[{worst[0][0]},{worst[0][1]}]",
        *(f"{side[worst[0]]:.6g}" for side in (got, golden, true)),
    ]


def test_the_csv_has_the_own_error(judged: Path) -> None:
    """Behind all other columns, of the outputs that were recomputed; `vc`, which recomputes nothing, is without."""
    header, _ = table(newest_result(judged))
    assert header[-1] == "OwnError"
    rows = by_tensor(newest_result(judged))
    state = {one["name"]: one for one in json.loads(tool("ls", "--json", cwd=judged).out)["graphs"][0]["ops"]}
    for op in ("one/MatMul", "one/Relu", "two/Tanh"):
        assert float(rows[f"{op}:output:0"]["OwnError"]) == pytest.approx(state[op]["own_error"], rel=1e-8)
        assert rows[f"{op}:input:0"]["OwnError"] == ""
    read = json.loads(tool("vcs", "--json", "-l", "0", "--threshold", "1", cwd=judged).out)["results"][0]
    assert "own_error" in json.dumps(read)
    again = tool("ac", cwd=judged)  # the verdict that was kept is of the file as it is now
    assert "recomputing" not in again.err
    tool("vc", cwd=judged)
    assert "OwnError" not in newest_result(judged).read_text(encoding="utf-8")


def test_the_drawing_has_the_own_error(judged: Path) -> None:
    tool("ni", "one/MatMul", "-s", "1", "-o", "drawn", cwd=judged)
    (source,) = (judged / "drawn").glob("*.gv")
    text = source.read_text(encoding="utf-8")
    assert "wrong result of its own" in text
    assert text.count("own error") >= 2


def test_ops_that_were_not_dumped_are_counted(tmp_path: Path) -> None:
    layers().write(tmp_path / "precision_data", leave_out=("one/MatMul", "two/Tanh", "loss/Square"))
    run = tool("ac", "-c", "--json", cwd=tmp_path)
    (gap,) = run.results[0]["verdict"]["gaps"]
    assert gap.startswith("3 of 12 ops were not dumped")
    assert gap.endswith("2 of them checked by what their readers received, 1 not checked")
    assert gap in tool("ac", cwd=tmp_path, columns=200).text
    assert "not dumped" not in tool("ac", "-c", cwd=whole(tmp_path)).text


def whole(folder: Path) -> Path:
    layers().write(folder / "whole" / "precision_data")
    return folder / "whole"
