"""Values that no writer writes, in places that every command looks at: each is told, and no command stops at it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array, out_tensor
from command_line import HANG, TOOL, by_tensor, environment, only_result, tool
from small_tree import Node, SmallTree, chain, faulty_chain, small_tree, values

import precision_tool
from precision_tool.lib.demo.dump_writer import write_statistics
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.io.ge_graph import load_graph_bytes
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.readers import read_statistics
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.finding import FindingKind


@pytest.mark.parametrize("name", ["²", "①", "٣", "9" * 250])
def test_folders_named_like_numbers(tmp_path: Path, name: str) -> None:
    """Digits to Python, which `int` does not take, or whose number nothing takes."""
    tree = small_tree(tmp_path / "precision_data", chain())
    odd = tree.leaf.parent / name
    odd.mkdir()
    for file in tree.leaf.iterdir():
        (odd / file.name).write_bytes(file.read_bytes())
    (tree.leaf / name).write_bytes(b"")
    for words in (["ls"], ["vc"], ["ac", "-c"], ["graphs"]):
        assert tool(*words, cwd=tmp_path, code=None).code in (0, 1, 2)
    assert "compared" in tool("vc", cwd=tmp_path).text


FIELDS = ("name", "type", "input", "output_desc", "input_desc", "attr", "id", "stream_id", "subgraph_name", "dtype",
          "layout", "shape", "key", "value", "s", "i", "list", "dim")  # fmt: skip


def emptied(value: Any, field: str) -> Any:
    """The document with an empty list as the value of every field of this name."""
    if isinstance(value, dict):
        return {key: [] if key == field else emptied(item, field) for key, item in value.items()}
    return [emptied(item, field) for item in value] if isinstance(value, list) else value


GRAPH = {
    "name": "g",
    "graph": [
        {
            "name": "g",
            "attr": [{"key": "_k", "value": {"list": {"i": [1, 2]}}}],
            "op": [
                {
                    "name": "a",
                    "type": "Add",
                    "id": 3,
                    "stream_id": 1,
                    "input": ["b:0"],
                    "subgraph_name": ["s"],
                    "attr": [
                        {"key": "_datadump_original_op_names", "value": {"list": {"s": ["x"]}}},
                        {"key": "_no_stream_split", "value": {"b": True}},
                        {"key": "n", "value": {"i": 3}},
                        {"key": "t", "value": {"s": "dA=="}},
                    ],
                    "input_desc": [{"dtype": "DT_FLOAT", "layout": "ND", "shape": {"dim": [1]}}],
                    "output_desc": [{"dtype": "DT_FLOAT", "layout": "ND", "shape": {"dim": [1]}}],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("field", FIELDS)
def test_an_empty_list_is_a_field_that_is_not_there(field: str) -> None:
    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key != field}
        return [without(item) for item in value] if isinstance(value, list) else value

    found = load_graph_bytes(json.dumps(emptied(GRAPH, field)).encode(), "g.json")
    expected = load_graph_bytes(json.dumps(without(GRAPH)).encode(), "g.json")
    assert [graph.name for graph in found.graphs] == [graph.name for graph in expected.graphs]
    for one, other in zip(found.ops, expected.ops, strict=True):
        assert (one.name, one.type, one.inputs, one.output_descs) == (
            other.name,
            other.type,
            other.inputs,
            other.output_descs,
        )
        assert dict(one.attrs) == dict(other.attrs)


def test_enum_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    text = 'graph {\n  name: "g"\n  op {\n    name: "a"\n    type: "A"\n    output_desc {\n      dtype: ' + "7" * 5000
    data = (text + "\n    }\n  }\n}\n").encode()
    with pytest.raises(FormatError):
        load_graph_bytes(data, "g.txt")
    path = tmp_path / "g_Build.txt"
    path.write_bytes(data)
    run = tool("graph2json", str(path), cwd=tmp_path, code=2)
    assert len(run.text) < 1000


@pytest.mark.parametrize("shape", [(0, 1 << 62, 1 << 62), (1 << 63,), (1 << 40, 1 << 40, 0), (1 << 62, 0)])
def test_shapes_beyond_64_bits(tmp_path: Path, shape: tuple[int, ...]) -> None:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    with pytest.raises(FormatError, match=r"no array can have the shape|needs"):
        read_npy(str(tmp_path / "a.npy"))
    tool("pt", "a.npy", cwd=tmp_path, code=2)
    tool("cp", "a.npy", "a.npy", cwd=tmp_path, code=2)
    text = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value\n"
    text += f"Output,0,16,DT_FLOAT,ND,{'x'.join(map(str, shape))},1\n"
    (tmp_path / "s.csv").write_text(text)
    assert read_statistics(str(tmp_path / "s.csv")).bad_slots


@pytest.mark.parametrize("column", ["Shape", "Index", "Data Size", "Count", "NaN Count"])
def test_whole_numbers_of_thousands_of_digits_in_statistics(tmp_path: Path, column: str) -> None:
    header = ["Input/Output", "Index", "Data Size", "Data Type", "Format", "Shape", "Count", "NaN Count"]
    cells = ["Output", "0", "16", "DT_FLOAT", "ND", "2x2", "4", "0"]
    cells[header.index(column)] = "7" * 5000
    (tmp_path / "s.csv").write_text(",".join(header) + "\n" + ",".join(cells) + "\n")
    ((_, reason),) = read_statistics(str(tmp_path / "s.csv")).bad_slots
    assert re.search(r"no whole number of 64 bits|is no number", reason.reason)
    assert len(render(reason)) < 200


def test_infinity_in_a_count_of_a_result(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", chain())
    tool("vc", cwd=tmp_path)
    path = only_result(tmp_path / "precision_data" / "temp")
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    counts = [at for at, name in enumerate(header) if name.endswith(("NaN", "PosInf", "NegInf", "Zeros"))]
    assert counts
    for value in ("inf", "-inf", "nan", "1e999"):
        for row in rows:
            for at in counts:
                row[at] = value if row[at].isdecimal() else row[at]
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
        assert tool("vcs", "-f", str(path), "--json", cwd=tmp_path, code=None).code in (0, 2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((np.nan, np.nan), "all 2 elements are NaN on both sides"),
        ((np.inf, np.inf), "all 2 elements are Inf on both sides"),
        ((np.nan, -np.inf), "all 2 elements are NaN or Inf on both sides"),
        ((np.nan,), "This tensor is scalar. all 1 elements are NaN on both sides"),
        ((np.nan, 1.0), ""),
        ((0.0, 0.0), ""),
    ],
)
def test_a_tensor_without_a_number_on_both_sides_is_remarked(
    tmp_path: Path, values: tuple[float, ...], said: str
) -> None:
    """Its cosine of 1 looks as if all were well."""
    x = np.array(values, np.float32)
    source = Node(name="IteratorV2", type="IteratorV2")
    op = Node(name="op", type="Add", inputs=(source,), output=x, golden=x.copy(), originals=("op",))
    tree = small_tree(tmp_path / "precision_data", [source, op])
    (result,) = precision_tool.compare(tree.root / "npu/debug_0/dump", tree.root / "tf/dump", workers=1)
    (row,) = [row for row in result.rows if row.pair.slot == "output:0"]
    assert row.metrics is not None
    assert render(row.reason).startswith(said) if said else row.reason is None


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """One side scales its loss by 1024."""
    source = Node(name="IteratorV2", type="IteratorV2")
    one = Node(name="scale", type="Mul", inputs=(source,), output=values(1024), golden=values(1))
    same = Node(name="same", type="Mul", inputs=(one,), output=values(0.5), golden=values(0.5))
    small_tree(tmp_path / "precision_data", [source, one, same])
    tool("vc", cwd=tmp_path)
    return tmp_path


def test_single_numbers_show_their_values_and_no_cosine(scale: Path) -> None:
    """A single number has no direction: its cosine is 1 whatever it is."""
    for words in (["ac"], ["vcs"], ["ni", "scale"], ["ls"]):
        text = tool(*words, cwd=scale).text
        assert "1024 / 1" in text, words
        assert "1.000000" not in text, words
    assert "0.5 / 0.5" in tool("ls", cwd=scale).text
    rows = {row["name"]: row for one in tool("ls", "--json", cwd=scale).json["graphs"] for row in one["ops"]}
    assert rows["scale"]["values"] == [1024.0, 1.0]
    assert rows["IteratorV2"]["values"] is None


def test_the_star_of_a_result_is_explained(tmp_path: Path) -> None:
    source = Node(name="IteratorV2", type="IteratorV2")
    op = Node(name="op", type="Add", inputs=(source,), output=values(3, 4), golden=values(4, 3), originals=("op",))
    cast = Node(name="trans_Cast_0", type="Cast", inputs=(op,), output=values(3, 4), originals=())
    small_tree(tmp_path / "precision_data", [source, op, cast])
    assert "Right: none (op inserted by the compiler)" in tool("vc", "-l", "0", cwd=tmp_path).text


# NaNs whose quiet bit is not set are NaNs like others, and nobody is warned of them.

CODES = {
    "<f2": ("<u2", 0x7C01),
    "<f4": ("<u4", 0x7F800001),
    ">f4": (">u4", 0xFF800001),
    "<f8": ("<u8", (0x7FF << 52) + 1),
}


@pytest.mark.parametrize("dtype", CODES)
def test_nobody_is_warned(tmp_path: Path, dtype: str) -> None:
    word, code = CODES[dtype]
    raw = np.full(5, code, word).tobytes() + np.arange(1, 4).astype(dtype).tobytes()
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': (8,), }}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + raw)
    np.save(tmp_path / "b.npy", np.arange(8.0))
    for words in (["pt", "a.npy"], ["pt", "a.npy", "-c"], ["cp", "a.npy", "b.npy"], ["cp", "a.npy", "a.npy"]):
        assert "Warning" not in tool(*words, cwd=tmp_path, env={"PYTHONWARNINGS": "always"}).err
    (found,) = tool("pt", "a.npy", "--json", cwd=tmp_path).json["tensors"]
    assert (found["figures"]["nan_count"], found["figures"]["mean"]) == (5, 2.0)


# A dump file that is cut off: the verdict says that it is, and in one wording what it went by instead.

CULPRIT = "conv2/Conv2Dconv2/BiasAddconv2/Relu"


@pytest.mark.parametrize("fault", ["none", "fused"])
def test_the_verdict_tells_of_a_dump_that_is_cut_off(tmp_path: Path, fault: str) -> None:
    tool("demo", "d", "--fault", fault, "--generate-only", cwd=tmp_path)
    (file,) = (tmp_path / "d").rglob("Conv2D.conv2_Conv2D*")
    file.write_bytes(file.read_bytes()[:5000])
    text = tool("ac", "-c", cwd=tmp_path / "d").text
    verdict = text[text.index("━ Verdict") :]
    assert f"not all dumped tensors of {CULPRIT} could be read: dump again" in verdict
    assert "from its own inputs" not in verdict
    if fault == "none":
        assert "no op computes incorrectly" in verdict
        assert "97 %" not in verdict  # what all that could be read would say
    else:
        assert "from its producers' outputs" in verdict
        assert "its inputs were not dumped or cannot be read" in verdict
    examined = tool("ni", CULPRIT, cwd=tmp_path / "d").text
    assert "from its producers' outputs" in examined
    assert "from its own inputs" not in examined


# A graph that is missing or cannot be read: nothing tells which op feeds which, so no op is named.

DAMAGES = {"cut off": b'graph { op { name: "a', "no text": b"\0\1\2", "empty": b"", "no graph": b"a: 1\n"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_op_is_named(tmp_path: Path, damage: str) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    assert "┃ middle/Mul (Mul)" in tool("ac", "-c", cwd=tmp_path).text
    tree.graph.write_bytes(DAMAGES[damage])
    run = tool("ac", "-c", cwd=tmp_path)
    assert "is the first op" not in run.text
    assert "┃ middle/Mul" not in run.text
    assert "unknown which op is wrong first: the graph of the run could not be read" in run.text
    assert str(tree.graph.relative_to(tmp_path)) in run.text
    tool("ac", "-c", "--fail", cwd=tmp_path, code=1)
    (result,) = tool("ac", "-c", "--json", cwd=tmp_path).results
    assert [finding["kind"] for finding in result["findings"]] == ["unreadable"]
    (leaf,) = precision_tool.compare(str(tree.root / "npu"), str(tree.root / "tf"))
    assert [finding.kind for finding in leaf.findings()] == [FindingKind.UNREADABLE]


def test_without_a_graph_ops_are_named_with_the_doubt(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    tree.graph.unlink()
    assert "without a graph" in tool("ac", "-c", cwd=tmp_path).text


def test_what_agrees_agrees_without_the_graph_too(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    tree.graph.write_bytes(b"a {")
    run = tool("ac", "-c", "--fail", cwd=tmp_path, code=1)  # for the graph, which cannot be read
    assert "every compared tensor reaches a cosine" in run.text


@pytest.mark.parametrize("is_cut", [True, False])
def test_no_op_is_cleared_that_only_the_graph_names(tmp_path: Path, is_cut: bool) -> None:
    tool("demo", "d", "--fault", "none", "--generate-only", cwd=tmp_path)
    for graph in (tmp_path / "d").rglob("ge_proto_*_Build.txt"):
        if is_cut:
            graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
        else:
            graph.unlink()
    run = tool("ac", "-c", "--fail", cwd=tmp_path / "d", code=1)
    assert "No faulty operator" not in run.text
    assert re.search(
        r"unknown whether an op is wrong: there is no graph, and \d+ of \d+ tensors were not compared", run.text
    )
    assert "copy the graph files again, or name one with -g" in run.text


def test_a_follower_is_not_called_faulty_without_a_graph(tmp_path: Path) -> None:
    tool("demo", "d", "--generate-only", cwd=tmp_path)
    for graph in (tmp_path / "d").rglob("ge_proto_*_Build.txt"):
        graph.unlink()
    run = tool("ac", "-c", "--fail", cwd=tmp_path / "d", code=1)
    assert "First faulty operator" not in run.text
    assert re.search(
        r"First op below the threshold.* an earlier op may be the faulty one next copy the graph", run.text
    )


# A dump of statistics (`dump_data='stats'`) as `vc` and `ac` take it.

ONLY = "only statistics are compared"


def numbers(seed: int) -> Array:
    return np.random.default_rng(seed).normal(0.2, 1.0, 300).astype(np.float32)


def right() -> list[Node]:
    """The chain with vectors of no neat numbers."""
    source, *nodes = chain()
    made = [source]
    for seed, node in enumerate(nodes):
        made.append(replace(node, inputs=(made[-1],), output=numbers(seed), golden=numbers(seed)))
    return made


def wrong(factor: float = 1.5) -> list[Node]:
    """The same with `middle/Mul` wrong, and with it what comes after it."""
    source, data, first, middle, last = right()
    assert middle.output is not None
    assert last.output is not None
    middle = replace(middle, inputs=(first,), output=middle.output * np.float32(factor))
    return [source, data, first, middle, replace(last, inputs=(middle,), output=last.output * np.float32(factor))]


def statistics_tree(folder: Path, nodes: Sequence[Node], run: str = "debug_0") -> SmallTree:
    """The tree of `nodes` with statistics in place of its dump files."""
    tree = small_tree(folder / "precision_data", nodes, run)
    for node in nodes:
        if node.output is None:
            continue
        fed = [out_tensor(source.output) for source in node.inputs if source.output is not None]
        path = tree.dumps[node.name]
        path.unlink()
        write_statistics(path.with_name(f"{path.name}.csv"), fed, [out_tensor(node.output)])
    return tree


def test_the_first_op_with_other_statistics_is_named(tmp_path: Path) -> None:
    tree = statistics_tree(tmp_path, wrong())
    run = tool("ac", "-c", "--fail", cwd=tmp_path, code=1)
    assert "middle/Mul is the first op whose output statistics differ" in run.text
    assert "(statistics only)" in run.text
    rows = by_tensor(only_result(tree.root / "temp"))
    golden = numbers(2).astype(np.float64)
    row = rows["middle/Mul:output:0"]
    assert row["CompareFailReason"].startswith(f"{ONLY}, and differ, more than rounding explains: ")
    assert row["CosineSimilarity"] == "NaN"
    assert float(row["GroundTruthMean"]) == pytest.approx(golden.mean(), rel=1e-8)
    assert float(row["NPUMean"]) == pytest.approx(1.5 * golden.mean(), rel=1e-6)
    assert (row["NPUStd"], row["NPUZeros"]) == ("NaN", "NaN")  # a statistics dump has neither
    assert rows["first/Add:output:0"]["CompareFailReason"].startswith(f"{ONLY}, and agree as far as they tell: ")
    assert "statistics compared for 7 tensors, 3 of them differ" in run.text
    # Read back it says the same.
    again = tool("ac", "--json", cwd=tmp_path).results[0]
    assert [(one["kind"], one["op_name"]) for one in again["findings"]] == [("nothing_compared", "middle/Mul")]


def test_statistics_that_agree_are_no_fault(tmp_path: Path) -> None:
    statistics_tree(tmp_path, right())
    run = tool("vc", "--fail", cwd=tmp_path)
    assert "only statistics were dumped, and they agree" in run.text


def test_a_first_op_that_is_fed_others_is_told_of(tmp_path: Path) -> None:
    """What feeds the network differs: the op that makes the data has no input that could tell whose fault that is."""
    source, data, *nodes = right()
    assert data.output is not None
    other = replace(data, output=data.output * np.float32(2))
    statistics_tree(tmp_path, [source, other, replace(nodes[0], inputs=(other,)), *nodes[1:]])
    run = tool("ac", "-c", cwd=tmp_path)
    assert "IteratorGetNext is the first op whose output statistics differ" in run.text
    assert "the runs may have used different data or weights" in run.text


# FIFOs and endless devices under the names of files that commands open: an error at once, in bounded memory.

Make = Callable[[Path], object]

#: More than any command needs on a small tree, less than a machine has.
LIMIT = f"--as={6 << 30}"

NO_FILES: dict[str, Make] = {"FIFO": os.mkfifo, "endless": lambda path: path.symlink_to("/dev/zero")}

#: Commands that open the file `named`; they run in a folder with a small tree.
COMMANDS = (
    "vcs -f named",
    "vc --custom named",
    "fusion show --file named",
    "fusion off AFusionPass --force --file named",
    "fusion reset --file named",
    "acl_json --check named",
    "ls -g named",
    "pt named",
    "vc --noise named",
)


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_a_file_that_is_named(tmp_path: Path, make: Make) -> None:
    """Each command at one prompt ends in an error that names the file, and the device is what it was."""
    small_tree(tmp_path / "precision_data", faulty_chain())
    make(tmp_path / "named")
    device = os.stat("/dev/zero")
    prompt = subprocess.run(
        ["prlimit", LIMIT, *TOOL],
        input="".join(f"{command}\n" for command in COMMANDS),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert prompt.returncode == 2
    errors = [line for line in prompt.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(COMMANDS), prompt.stderr
    for line in errors:
        assert "named: " in line
        assert "not a regular file" in line or "that is no file" in line
    assert os.stat("/dev/zero").st_rdev == device.st_rdev


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_a_file_that_is_found(tmp_path: Path, make: Make) -> None:
    """`mapping.csv` beside the dumps, the newest result, what a bisection left, the settings."""
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    make(tree.leaf / "mapping.csv")
    assert "mapping.csv: not a regular file" in tool("vc", cwd=tmp_path, prefix=("prlimit", LIMIT)).text
    (result,) = (tmp_path / "precision_data").rglob("result_*.csv")
    result.unlink()
    make(result)
    assert "not a regular file" in tool("vcs", cwd=tmp_path, code=2, prefix=("prlimit", LIMIT)).text
    state = tree.root / "temp" / "fusion_bisect" / "state.json"
    state.parent.mkdir()
    make(state)
    (tmp_path / "my.cfg").write_text("APass:on\n")
    assert "APass" in tool("fusion", "show", "--file", "my.cfg", cwd=tmp_path, prefix=("prlimit", LIMIT)).text
    make(tmp_path / "precision_config.py")
    told = tool("ls", cwd=tmp_path, code=2, prefix=("prlimit", LIMIT)).text
    assert "precision_config.py: not a regular file" in told


# A data folder that is not as `ac -c` takes it: a file where a folder should be, dumps of several ranks.


@pytest.mark.parametrize("place", ["tf/dump", "npu/debug_0/dump"])
def test_a_file_where_a_folder_should_be_is_named(place: str, tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    generate_demo(data)
    shutil.rmtree(data / place)
    (data / place).write_bytes(b"")
    run = tool("ac", "-c", cwd=tmp_path, code=2)
    assert f"{place}: a file where a folder should be" in run.text


def test_dumps_of_several_ranks_are_sent_to_the_study(tmp_path: Path) -> None:
    generate_ranks(tmp_path, ranks=2, steps=1)
    run = tool("ac", "-c", cwd=tmp_path)
    last = run.out.splitlines()[-1]
    assert last == "2 dump folders of 2 ranks and 1 step: `precision-tool ac --all` gives one verdict on them"


def test_a_report_says_which_folder_was_made_for_it(tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data")
    tool("ac", "-c", cwd=tmp_path)
    first = tool("report", "-o", "new/a.html", cwd=tmp_path)
    second = tool("report", "-o", "new/b.html", cwd=tmp_path)
    assert "created the folder new\n" in first.out
    assert "created the folder" not in second.out
    assert (tmp_path / "new" / "a.html").is_file()


def test_a_study_is_not_held_against_an_earlier_verdict(tmp_path: Path) -> None:
    assert "--verbose" in tool("ac", "--all", "-v", cwd=tmp_path, code=2).err
    run = tool("ac", "--all", "--since", cwd=tmp_path, code=2)
    assert run.err.startswith("error: ac: --since cannot be combined with --all\n")
