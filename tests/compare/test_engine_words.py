"""`--engine` of vc, ac and dc, and the word `toolkit`, with stand-ins for the vendor's programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_line import TOOL, environment, fingerprint, only_result, result_files, table, tool
from opdebug_payloads import core_fields, new_payload, write_status
from small_tree import SmallTree, faulty_chain, small_tree
from toolkit_standin import Standin, make_toolkit

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.pytorch_demo import generate_pytorch

#: A folder name that a shell, and msaccucmp, would trip over.
ODD = 'it\'s a "place" $HOME'


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    """A small network whose second op is wrong."""
    return small_tree(tmp_path / "precision_data", faulty_chain())


def compat_table(cwd: Path) -> tuple[list[str], list[list[str]]]:
    """What native writes with --compat."""
    tool("--work", "native", "vc", "--compat", cwd=cwd)
    return table(only_result(cwd / "native"))


# --- toolkit ----------------------------------------------------------------------------------------------------------


def test_what_is_found(tmp_path: Path) -> None:
    made = make_toolkit(tmp_path / ODD)
    run = tool("toolkit", cwd=tmp_path, env=made.environment)
    for path in (made.atc, made.msaccucmp):
        assert str(path) in run.text
    assert "8.0.RC1" in run.text
    document = json.loads(tool("toolkit", "--json", cwd=tmp_path, env=made.environment).out)
    assert document["atc"] == str(made.atc)
    assert document["engine"] == "native"
    assert made.calls == []  # nothing was run


def test_nothing_is_found(tmp_path: Path) -> None:
    run = tool("toolkit", cwd=tmp_path, env={"PRECISION_TOOL_CMD_ROOT_PATH": str(tmp_path / "none")})
    assert "not found" in run.text
    assert run.text.count("missing") == 2
    assert "PRECISION_TOOL_CMD_ROOT_PATH" in run.text


# --- vc ---------------------------------------------------------------------------------------------------------------


def test_the_toolkit_compares(tmp_path: Path, tree: SmallTree) -> None:
    """Its file is what it wrote; its programs get paths as arguments and the environment of set_env.sh."""
    made = make_toolkit(tmp_path / "cann")
    before = fingerprint(tree.dump_path)
    run = tool("vc", "--engine", "cann", "--json", cwd=tmp_path, env=made.environment)
    assert fingerprint(tree.dump_path) == before
    path = only_result(tree.root / "temp")
    assert path.name == f"result_{path.parent.name}.csv"
    assert table(path) == compat_table(tmp_path)
    (result,) = run.results
    assert result["file"].endswith(path.name)
    atc, compare = made.calls
    assert [atc[0], atc[1]] == ["atc", "--mode=5"]
    assert f"--om={tree.graph}" in atc
    assert compare[:3] == ["msaccucmp.py", "compare", "-m"]
    assert {call[-1] for call in made.calls} == {"it is set"}
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


def test_odd_paths(tmp_path: Path) -> None:
    """Spaces and quotes in every path: of the toolkit, the data and the results."""
    cwd = tmp_path / ODD
    cwd.mkdir()
    small_tree(cwd / "precision_data", faulty_chain())
    made = make_toolkit(cwd / "cann toolkit")
    tool("--work", "re'sults", "vc", "--engine", "cann", cwd=cwd, env=made.environment)
    assert table(only_result(cwd / "re'sults")) == compat_table(cwd)


def test_a_graph_is_converted_once_whatever_it_is_called(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann")

    def converted() -> int:
        tool("vc", "--engine", "cann", cwd=tmp_path, env=made.environment)
        return sum(call[0] == "atc" for call in made.calls)

    assert converted() == 1
    tree.graph.rename(tree.graph.with_name("ge_proto_00000099_graph_1_Build.txt"))
    assert converted() == 1
    graph = tree.graph.with_name("ge_proto_00000099_graph_1_Build.txt")
    graph.write_text(graph.read_text().replace("tvm_blockdim", "tvm_blockdon"))
    assert converted() == 2


def kept_as(name: str) -> str:
    """What a file of that name would be kept as."""
    return json.dumps({"texts": {name: "x"}, "notes": []})


def test_a_dump_is_compared_once_whatever_it_is_called(tmp_path: Path, tree: SmallTree) -> None:
    """Until a tensor, its name, the options or the program is another; each comparison has its own result."""
    made = make_toolkit(tmp_path / "cann")
    made_of_it: list[Path] = []

    def compared(*options: str) -> tuple[int, str]:
        run = tool("vc", "--engine", "cann", "--json", *options, cwd=tmp_path, env=made.environment)
        made_of_it.append(tmp_path / run.results[0]["file"])
        return sum(call[0] == "msaccucmp.py" for call in made.calls), run.err

    assert compared()[0] == 1
    moved = tree.leaf.with_name("7")
    tree.leaf.rename(moved)
    count, told = compared("-lt", str(moved))
    assert count == 1
    assert "msaccucmp compared files of this content before" in told
    moved.rename(tree.leaf)
    first, second = map(table, made_of_it)
    assert first == second == compat_table(tmp_path)
    assert len(set(made_of_it)) == 2

    assert compared("-a", "0")[0] == 2
    golden = next(iter(tree.goldens.values()))
    data = bytearray(golden.read_bytes())
    data[-1] ^= 1
    golden.write_bytes(data)
    assert compared()[0] == 3
    golden.rename(golden.with_name(golden.name.replace(".0.", ".7.")))
    assert compared()[0] == 4
    os.utime(made.msaccucmp, (1, 1))
    assert compared()[0] == 5
    made.msaccucmp.with_name("a_module.py").touch()
    assert compared()[0] == 6
    (tree.leaf / "loop").symlink_to("loop")
    assert compared()[0] == 6
    for number, text in enumerate(("{", "[]", '{"texts": {}}', kept_as("a.txt"), kept_as("../result_1.csv")), 7):
        for kept in (tree.root / "temp" / "op_graph").glob("compared_*"):
            kept.write_text(text, "utf-8")
        assert compared()[0] == number


@pytest.mark.parametrize(("code", "said", "count"), [(2, "", 1), (2, "[ERROR] out of memory", 2), (5, "", 2)])
def test_what_has_errors_is_not_kept(tmp_path: Path, tree: SmallTree, code: int, said: str, count: int) -> None:
    """They may be of the moment. That something was not dumped, which 2 stands for, is kept, and told each time."""
    made = make_toolkit(tmp_path / "cann", msaccucmp="warn")
    script = made.msaccucmp.read_text("utf-8")
    assert "sys.exit(2 " in script
    made.msaccucmp.write_text(script.replace("sys.exit(2 ", f"print({said!r}); sys.exit({code} "), "utf-8")
    for _ in range(2):
        run = tool("vc", "--engine", "cann", cwd=tmp_path, env=made.environment)
        assert f"msaccucmp ended with exit code {code}" in run.err
    assert sum(call[0] == "msaccucmp.py" for call in made.calls) == count


def test_what_changes_while_it_is_compared_is_not_kept(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann")
    golden = next(iter(tree.goldens.values()))
    script = made.msaccucmp.read_text("utf-8")
    made.msaccucmp.write_text(script.replace("FAULT,", f"os.utime({str(golden)!r}); FAULT,", 1), "utf-8")
    for count in (1, 2):
        tool("vc", "--engine", "cann", cwd=tmp_path, env=made.environment)
        assert sum(call[0] == "msaccucmp.py" for call in made.calls) == count


def test_without_atc_our_own_converter(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann", atc=None)
    run = tool("vc", "--engine", "cann", cwd=tmp_path, env=made.environment)
    assert "graph2json made the graph's JSON" in run.text
    assert table(only_result(tree.root / "temp")) == compat_table(tmp_path)


def test_the_setting_is_the_default(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann")
    tool("ac", "-c", cwd=tmp_path, env=made.environment | {"PRECISION_TOOL_ENGINE": "cann"})
    assert [call[0] for call in made.calls] == ["atc", "msaccucmp.py"]
    tool("vc", "--engine", "native", cwd=tmp_path, env=made.environment | {"PRECISION_TOOL_ENGINE": "cann"})
    assert len(made.calls) == 2


def test_a_full_result_with_an_exit_code_is_a_warning(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann", atc="warn", msaccucmp="warn")
    run = tool("vc", "--engine", "cann", cwd=tmp_path, env=made.environment)
    assert "atc ended with exit code 1, but the JSON it wrote is complete" in run.text
    assert "msaccucmp ended with exit code 2, but its result is complete" in run.text
    assert table(only_result(tree.root / "temp")) == compat_table(tmp_path)


@pytest.mark.parametrize(
    ("program", "fault", "words"),
    [
        ("atc", "crash", ["atc: it made no JSON", "killed by signal 6", "E40021: something is wrong"]),
        ("atc", "half", ["atc: it made no JSON", "cut off or no JSON", "ATC run success"]),
        ("atc", "nothing", ["atc: it made no JSON", "it wrote no file"]),
        ("msaccucmp", "crash", ["msaccucmp: it wrote no result", "killed by signal 6"]),
        ("msaccucmp", "half", ["msaccucmp: its result is not complete"]),
        ("msaccucmp", "nothing", ["msaccucmp: it wrote no result (exit code 0)", "it printed nothing"]),
        ("msaccucmp", "hang", ["msaccucmp was stopped after 2 s", "still working"]),
    ],
)
def test_programs_that_fail(tmp_path: Path, tree: SmallTree, program: str, fault: str, words: list[str]) -> None:
    """An error that says what and where the log is; no result, no half of one, and no process left."""
    faults = {"atc": "", "msaccucmp": ""} | {program: fault}
    made = make_toolkit(tmp_path / "cann", **faults)
    limit = {"PRECISION_TOOL_TOOLKIT_SECONDS": "2"} if fault == "hang" else {}
    run = tool("vc", "--engine", "cann", cwd=tmp_path, code=2, env=made.environment | limit)
    for word in words:
        assert word in run.text
    assert "--engine native" in run.text or "TOOLKIT_SECONDS" in run.text
    assert result_files(tmp_path) == []
    assert not list((tree.root / "temp").rglob(".precision_tool-*"))
    assert not list((tree.root / "temp" / "op_graph").glob("*.json")) or program == "msaccucmp"
    if fault == "hang":
        wait_for_end(made)


def wait_for_end(made: Standin) -> None:
    """The program and its child are gone, soon."""
    pids = made.calls_file.with_name("calls.pid").read_text().split()
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_running(pid) for pid in pids)


def is_running(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_ctrl_c_ends_the_program_and_its_children(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann", msaccucmp="hang")
    with subprocess.Popen(
        [*TOOL, "vc", "--engine", "cann"],
        cwd=tmp_path,
        env=environment(tmp_path) | made.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl+C means us alone here: the program is in a group of its own.
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # no threads here
    ) as process:
        deadline = time.monotonic() + 60
        while not made.calls_file.with_name("calls.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    wait_for_end(made)
    assert result_files(tree.root) == []


def test_none_at_all(tmp_path: Path, tree: SmallTree) -> None:
    absent = {"PRECISION_TOOL_CMD_ROOT_PATH": str(tmp_path / "none")}
    run = tool("vc", "--engine", "cann", cwd=tmp_path, code=2, env=absent)
    assert "msaccucmp was not found" in run.text
    assert "CMD_ROOT_PATH in the configuration, or PRECISION_TOOL_CMD_ROOT_PATH in the environment" in run.text
    assert "--engine native" in run.text
    assert result_files(tree.root) == []
    # auto needs none as long as native can read everything
    assert "note" not in tool("vc", "--engine", "auto", cwd=tmp_path, env=absent).err


@pytest.mark.parametrize("options", [["--custom", "m.py"], ["-op", "middle/Mul"]], ids=["custom", "op"])
def test_what_the_toolkit_cannot_do(tmp_path: Path, tree: SmallTree, options: list[str]) -> None:
    (tmp_path / "m.py").write_text("def compare_same(x, y):\n    return 1\n")
    made = make_toolkit(tmp_path / "cann")
    run = tool("vc", "--engine", "cann", *options, cwd=tmp_path, code=2, env=made.environment)
    assert "--engine native" in run.text
    assert tree.root.is_dir()
    assert made.calls == []


def test_auto_asks_for_what_native_cannot_read(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann")
    tree.dumps["middle/Mul"].write_bytes(b"damaged")
    run = tool("vc", "--engine", "auto", cwd=tmp_path, env=made.environment)
    assert "native could not read 1 tensor; the toolkit compared 0 of them" in run.text
    ours, theirs = sorted(result_files(tree.root / "temp"))
    assert (ours.name[:7], theirs.name[:15]) == ("result_", "toolkit_result_")
    # the newest result is still ours
    assert f"result file: {ours.relative_to(tmp_path)}" in tool("vcs", cwd=tmp_path).text


def test_fused_against_unfused(tmp_path: Path) -> None:
    """Both graphs go to atc, and as -f and -cf to msaccucmp; without names they are those of the two runs."""
    generate_demo(tmp_path / "precision_data", fault="fusion")
    runs = [tmp_path / "precision_data" / "npu" / run for run in ("debug_1", "debug_0")]  # fused, unfused
    leaves = [next(path for path in (run / "dump").rglob("*") if path.is_file()).parent for run in runs]
    graphs = [next((run / "graph").glob("*_graph_1_Build.txt")) for run in runs]
    made = make_toolkit(tmp_path / "cann")
    tool("--work", "native", "vc", "--compat", "-cf", cwd=tmp_path)
    wanted = table(only_result(tmp_path / "native"))
    sides: list[list[str | Path]] = [["-cf"], ["-cf", graphs[1], "-lt", leaves[0], "-rt", leaves[1]]]
    for number, words in enumerate(sides):
        tool("--work", f"w{number}", "vc", *words, "--engine", "cann", cwd=tmp_path, env=made.environment)
        assert table(only_result(tmp_path / f"w{number}")) == wanted
        *converted, call = made.calls[3 * number :]
        assert [one[0] for one in converted] == ["atc", "atc"]
        assert {word for one in converted for word in one if word.startswith("--om")} == {
            f"--om={one}" for one in graphs
        }
        assert [call[call.index(flag) + 1] for flag in ("-m", "-g")] == [str(leaves[0]), str(leaves[1])]
        given = [Path(call[call.index(flag) + 1]).name for flag in ("-f", "-cf")]
        assert given == ["graph-f.json", "graph-cf.json"]


def test_a_second_graph_without_a_second_run(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann")
    sides = ("-lt", tree.leaf, "-rt", tree.root / "tf" / "dump")
    run = tool("vc", "-cf", tree.graph, *sides, "--engine", "cann", cwd=tmp_path, code=2, env=made.environment)
    native = tool("vc", "-cf", tree.graph, *sides, cwd=tmp_path, code=2)
    assert run.err == native.err
    assert made.calls == []


# --- vc of .h5 ---


def test_the_toolkit_compares_h5(tmp_path: Path) -> None:
    cwd = tmp_path / ODD
    truth = generate_pytorch(cwd / "precision_data")
    made = make_toolkit(tmp_path / "cann")
    run = tool("vc", "--engine", "cann", "--json", cwd=cwd, env=made.environment)
    assert len(run.results) == 1
    assert table(only_result(truth.npu.parents[2] / "temp")) == compat_table(cwd)
    (call,) = made.calls
    assert call[1] == "compare"
    assert "-f" not in call


@pytest.mark.parametrize("options", [["--max", "3"], ["--map"], ["-s", "1"], ["--overflow_detection"]])
def test_what_the_toolkit_cannot_do_with_h5(tmp_path: Path, options: list[str]) -> None:
    truth = generate_pytorch(tmp_path / "precision_data")
    made = make_toolkit(tmp_path / "cann")
    sides = ("-lt", truth.npu, "-rt", truth.golden)
    run = tool("vc", *sides, *options, "--engine", "cann", cwd=tmp_path, code=2, env=made.environment)
    assert "--engine native" in run.text
    assert made.calls == []
    assert result_files(tmp_path) == []


def test_models_of_one_name_have_a_result_each(tmp_path: Path, tree: SmallTree) -> None:
    """Two ids of a model are told apart by a number, as native does."""
    model, number, step = tree.leaf.parts[-3:]
    tree.copy_leaf("0", model, f"{number}0", step)
    made = make_toolkit(tmp_path / "cann")
    tool("vc", "--engine", "cann", cwd=tmp_path, env=made.environment)
    tool("--work", "native", "vc", cwd=tmp_path)
    named = [sorted(path.name.replace(path.parent.name, "") for path in result_files(folder))
             for folder in (tree.root / "temp", tmp_path / "native")]  # fmt: skip
    assert named[0] == named[1]
    assert len(named[0]) == 2


# --- overflow ---


@pytest.fixture
def status(tmp_path: Path) -> Path:
    """An overflow status file in a data folder with an odd name."""
    folder = tmp_path / ODD / "precision_data" / "overflow" / "dump" / "20260302093000" / "0" / "model" / "1" / "0"
    return write_status(folder, new_payload(0, core_fields()))


def test_the_toolkit_looks_for_overflow(tmp_path: Path, status: Path) -> None:
    cwd = tmp_path / ODD
    made = make_toolkit(tmp_path / "cann")
    before = fingerprint(cwd / "precision_data" / "overflow")
    run = tool("overflow", "-l", "2", "--engine", "cann", cwd=cwd, env=made.environment)
    assert fingerprint(cwd / "precision_data" / "overflow") == before
    assert "1 overflow ops, 2 shown" in run.out
    folder = cwd / "precision_data" / "temp" / "decode" / "overflow_decode"
    decoded = f"{status.name}.output.0.json"
    assert sorted(path.name for path in folder.iterdir()) == [decoded, "overflow_summary_20260101000000.txt"]
    run = tool("overflow", "--fail", "--json", "--engine", "cann", cwd=cwd, code=1, env=made.environment)
    document = json.loads(run.out)
    assert document["engine"] == "cann"
    (result,) = document["results"]
    assert [Path(path).name for path in result["files"]] == [decoded]
    assert (cwd / result["summary"]).is_file()


@pytest.mark.parametrize("device_folders", [["0", "1"]])
def test_each_folder_with_statuses_has_its_own_summary(tmp_path: Path, status: Path, device_folders: list[str]) -> None:
    cwd = tmp_path / ODD
    device = status.parents[3]
    shutil.copytree(device, device.with_name(device_folders[1]))
    made = make_toolkit(tmp_path / "cann")
    run = tool("overflow", "--json", "--engine", "cann", cwd=cwd, env=made.environment)
    summaries = [Path(one["summary"]) for one in json.loads(run.out)["results"]]
    assert [path.parts[-5] for path in summaries] == device_folders


def test_auto_asks_for_a_status_that_native_cannot_read(tmp_path: Path, status: Path) -> None:
    cwd = tmp_path / ODD
    made = make_toolkit(tmp_path / "cann")
    assert "toolkit" not in tool("overflow", "--engine", "auto", cwd=cwd, env=made.environment).err
    assert made.calls == []
    status.write_bytes(b"damaged")
    run = tool("overflow", "--engine", "auto", cwd=cwd, env=made.environment)
    assert "native could not read 1 overflow status; the toolkit's summary of their folder: " in run.err
    absent = {"PRECISION_TOOL_CMD_ROOT_PATH": str(tmp_path / "none")}
    assert "no toolkit was found" in tool("overflow", "--engine", "auto", cwd=cwd, env=absent).err


def test_overflow_refusals(tmp_path: Path, status: Path) -> None:
    cwd = tmp_path / ODD
    (tmp_path / "empty").mkdir()
    made = make_toolkit(tmp_path / "cann", msaccucmp="nothing")
    cases = {
        ("--mixlist",): "overflow: --engine cann cannot do --mixlist",
        ("-g", "graph.txt"): "overflow: --engine cann cannot do -g",
        (str(tmp_path / "none"),): "no such folder",
        (str(tmp_path / "empty"),): "no overflow status file",
        (): "msaccucmp: it wrote no summary",
    }
    for words, said in cases.items():
        run = tool("overflow", *words, "--engine", "cann", cwd=cwd, code=2, env=made.environment)
        assert said in run.err
        assert "hint" in run.err
    assert len(made.calls) == 1


# --- dc ---------------------------------------------------------------------------------------------------------------


def test_the_toolkit_decodes(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann")
    run = tool("dc", tree.dump_path, "--engine", "cann", "-o", "decoded", cwd=tmp_path, env=made.environment)
    assert "decoded by msaccucmp" in run.text
    tool("dc", tree.dump_path, "-o", "native", cwd=tmp_path)
    for path in (tmp_path / "native").glob("*.npy"):
        assert (tmp_path / "decoded" / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "decoded").iterdir())) == len(list((tmp_path / "native").iterdir())) > 5


def test_auto_decodes_the_rest_with_the_toolkit(tmp_path: Path, tree: SmallTree) -> None:
    made = make_toolkit(tmp_path / "cann", msaccucmp="nothing")
    damaged = tree.dumps["middle/Mul"]
    damaged.write_bytes(b"damaged")
    run = tool("dc", tree.dump_path, "--engine", "auto", "-o", "decoded", cwd=tmp_path, env=made.environment)
    assert "native could not decode 1 tensor; nor could the toolkit: msaccucmp: it decoded nothing" in run.text
    (call,) = made.calls
    assert call[1:3] == ["convert", "-d"]


def test_the_engine_is_an_option_of_the_comparison(tmp_path: Path, tree: SmallTree) -> None:
    """So `ac` compares without -c."""
    made = make_toolkit(tmp_path / "cann")
    run = tool("ac", "--engine", "cann", cwd=tmp_path, env=made.environment)
    assert "middle/Mul" in run.text
    assert made.calls


# --- graph2json -------------------------------------------------------------------------------------------------------


def test_graph2json(tmp_path: Path, tree: SmallTree) -> None:
    run = tool("graph2json", tree.graph, cwd=tmp_path)
    made = tree.root / "temp" / "op_graph" / f"{tree.graph.stem}.json"
    assert str(made.relative_to(tmp_path)) in run.text
    document = json.loads(made.read_text("utf-8"))
    assert [op["name"] for op in document["graph"][0]["op"]] == [
        "IteratorV2", "IteratorGetNext", "first/Add", "middle/Mul", "last/Sub"
    ]  # fmt: skip
    # The comparison reads it as it reads the text.
    for graph in (tree.graph, made):
        tool("--work", graph.suffix[1:], "vc", "-g", graph, cwd=tmp_path)
    texts = [only_result(tmp_path / suffix).read_text() for suffix in ("txt", "json")]
    assert texts[0] == texts[1]


def test_graph2json_refusals(tmp_path: Path, tree: SmallTree) -> None:
    shutil.copy(tree.graph, tmp_path / "graph.txt")
    cases = {
        ("graph.txt", "graph.txt"): "is the graph itself",
        ("none.txt",): "no such file",
        (str(tree.goldens["middle/Mul"]),): "NUL",
        ("graph.txt", str(tree.leaf / "x.json")): "holds dumps",
    }
    for words, said in cases.items():
        assert said in tool("graph2json", *words, cwd=tmp_path, code=2).text
    tool("graph2json", "graph.txt", "graph.json", cwd=tmp_path)
    other = tmp_path / "other.txt"
    shutil.copy(tree.graph, other)
    run = tool("graph2json", "graph.txt", "other.txt", cwd=tmp_path, code=2)  # as graph2json *.txt
    assert "other.txt: exists and is not JSON: it is not replaced" in run.text
    assert other.read_bytes() == tree.graph.read_bytes()
    before = fingerprint(tree.graph.parent)
    assert (
        "holds the run's own graphs"
        in tool("graph2json", "graph.txt", tree.graph.parent / "new.json", cwd=tmp_path, code=2).text
    )
    assert fingerprint(tree.graph.parent) == before
    tool("graph2json", "graph.txt", "graph.json", cwd=tmp_path)  # its own result is made anew
    assert "JSON already" in tool("graph2json", "graph.json", "x.json", cwd=tmp_path, code=2).text
