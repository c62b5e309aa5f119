"""`fusion` and `graphs diff` as a user types them, on the demo's pair and on what is wrong with a pair."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import HANG, TOOL, Finished, environment, fingerprint, hear_signals, only_result, tool
from faults import negated
from small_tree import Node, small_tree, values
from tiny_network import layers

import precision_tool
from precision_tool.lib.cli.bisect_runner import BisectRun, is_bisected
from precision_tool.lib.cli.switch_files import SwitchFile
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.io.fusion_passes import SHIPPED_SWITCH, read_switches, render

GUILTY = "TbeConvDequantVaddReluQuantFusionPass"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoTruth]:
    root = tmp_path_factory.mktemp("fusion") / "precision_data"
    return root, generate_demo(root, fault="fusion")


@pytest.fixture
def demo(tmp_path: Path, generated: tuple[Path, DemoTruth]) -> Path:
    """A folder with the demo's `precision_data`, whose dumps are only linked to."""
    root = tmp_path / "precision_data"
    root.mkdir()
    for part in ("npu", "tf"):
        (root / part).symlink_to(generated[0] / part)
    shutil.copytree(generated[0] / "fusion", root / "fusion")
    return tmp_path


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    """An installation of its own, whose switch files may be edited: the environment that uses it."""
    source = Path(precision_tool.__file__).parent
    target = tmp_path / "installed" / "precision_tool"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return {"PYTHONPATH": str(target.parent)}


def switch_file(tmp_path: Path, name: str = "fusion_switch.cfg") -> Path:
    return tmp_path / "precision_data" / "fusion" / name


def switches_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))["Switch"]
    return found


#: ALL, and what GE's own file switches on by name, which beats ALL.
EVERYTHING_OFF = {
    "GraphFusion": {
        "ALL": "off", "FusedInferAttentionScoreQuantFusionPass": "off", "GridSampler3DFusionPass": "off",
        "IncreFlashAttentionQuantFusionPass": "off", "LayerNormGradV3FusionPass": "off",
        "PromptFlashAttentionQuantFusionPass": "off",
    },
    "UBFusion": {"ALL": "off", "TbeMatmulFixPipeFusionPass": "off"},
}  # fmt: skip


# --- passes in effect -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_passes_in_effect(demo: Path, columns: int) -> None:
    shown = tool("fusion", cwd=demo, columns=columns).text
    assert f"{GUILTY} 2 2 2 -" in shown
    assert "AReduceMeanFusionPass 1 1 2 - Graph, always on" in shown
    assert "debug_0 2 ops made by fusion" in shown
    tool("vc", "-cf", cwd=demo)
    assert f"{GUILTY} 2 2 2 0.77" in tool("fusion", cwd=demo, columns=columns).text


def test_passes_in_effect_as_json(demo: Path) -> None:
    unfused, fused = tool("fusion", "--json", cwd=demo).json["graphs"]
    assert [row["name"] for row in unfused["rows"]] == ["AReduceMeanFusionPass"]
    assert {row["name"]: row["effective"] for row in fused["rows"]}[GUILTY] == 2


def test_the_panel_of_ac(demo: Path) -> None:
    shown = tool("ac", "-c", cwd=demo).text
    assert "Fusion passes in effect" in shown
    assert "4 fusion passes made 9 ops" in shown
    checks = tool("ac", "--json", cwd=demo).json["checks"]
    assert checks[0]["name"] == "fusion_passes"


def test_a_report_is_also_read_from_the_other_documented_places(tmp_path: Path) -> None:
    (tmp_path / "precision_data").mkdir()
    text = '{"ub_fusion": {"APass": {"match_times": 3, "effect_times": 2}}}'
    (tmp_path / "fusion_result.json").write_text(text)
    assert "APass 3 2 0 -" in tool("fusion", cwd=tmp_path).text
    (tmp_path / "fusion_result.json").unlink()
    place = tmp_path / "work" / "FE" / "4711"
    place.mkdir(parents=True)
    (place / "fusion_result.json").write_text(text)
    assert "APass 3 2 0 -" in tool("fusion", cwd=tmp_path, env={"ASCEND_WORK_PATH": str(tmp_path / "work")}).text
    (place / "fusion_result.json").write_text("{")
    broken = tool("fusion", cwd=tmp_path, env={"ASCEND_WORK_PATH": str(tmp_path / "work")}, code=2)
    assert "no graph" in broken.text


# --- the switch file --------------------------------------------------------------------------------------------------


def test_editing_the_files_that_the_training_helper_points_to(demo: Path, package: dict[str, str]) -> None:
    path = switch_file(demo)
    run = tool("fusion", "off", GUILTY, "MatMulBiasAddFusionPass", cwd=demo, env=package)
    assert switches_of(path) == {
        "GraphFusion": {"ConvToFullyConnectionFusionPass": "on", "MatMulBiasAddFusionPass": "off"},
        "UBFusion": {"TbePool2dQuantFusionPass": "on", GUILTY: "off"},
    }
    assert "in the data 2 of 4 passes are off" in run.text
    assert "action='fusion_switch'" in run.text
    tool("fusion", "on", GUILTY, cwd=demo, env=package)
    assert switches_of(path)["UBFusion"][GUILTY] == "on"
    assert switches_of(path.with_name("fusion_switch.cfg.last"))["UBFusion"][GUILTY] == "off"
    tool("fusion", "all-off", cwd=demo, env=package)
    assert switches_of(path) == EVERYTHING_OFF
    assert "off in the switch file" in tool("fusion", cwd=demo, env=package).text
    tool("fusion", "on", "MatMulBiasAddFusionPass", "--off-file", cwd=demo, env=package)
    off = switch_file(demo, "fusion_off.cfg")
    assert switches_of(off)["GraphFusion"] == {
        **EVERYTHING_OFF["GraphFusion"], "MatMulBiasAddFusionPass": "on"
    }  # fmt: skip
    shown = tool("fusion", "show", cwd=demo, env=package).text
    assert "3 of 4 passes are off" in shown
    assert "AReduceMeanFusionPass: GE never switches it off" in shown
    tool("fusion", "reset", cwd=demo, env=package)
    assert path.read_text() == render(SHIPPED_SWITCH)
    assert switches_of(off) == EVERYTHING_OFF
    # The installed files, which all users and data folders share, only when that is asked for.
    installed = demo / "installed" / "precision_tool" / "lib" / "config"
    assert (installed / "fusion_switch.cfg").read_text() == render(SHIPPED_SWITCH)
    tool("fusion", "off", GUILTY, "--installed", cwd=demo, env=package)
    assert switches_of(installed / "fusion_switch.cfg")["UBFusion"][GUILTY] == "off"
    assert path.read_text() == render(SHIPPED_SWITCH)
    assert "use one of them" in tool("fusion", "show", "--installed", "--file", path, cwd=demo, code=2).err


def test_a_data_folder_that_is_not_there_has_no_switch_file(tmp_path: Path) -> None:
    for words in (["show"], ["off", "APass"], ["all-off"], ["reset"]):
        assert "precision_data: no such data folder" in tool("fusion", *words, cwd=tmp_path, code=2).err
    assert os.listdir(tmp_path) == [".tmp"]
    tool("fusion", "off", "APass", "--file", "my.cfg", cwd=tmp_path)


def test_any_other_file_in_both_forms(demo: Path) -> None:
    new = demo / "new.cfg"
    tool("fusion", "off", "APass", "--section", "UBFusion", "--file", new, cwd=demo)
    assert switches_of(new)["UBFusion"]["APass"] == "off"
    old = demo / "old.cfg"
    old.write_text("ALL:off\nBPass:on // why\n")
    run = tool("fusion", "off", "APass", "BPass", "--file", old, cwd=demo)
    assert old.read_text() == "ALL:off\nBPass:off\nAPass:off\n"
    assert "before, line 2: a comment, which GE does not understand; the file is written again" in run.text


def test_a_typo_of_before_is_meant_by_no_part_of_it(demo: Path) -> None:
    """What only one's own switch file names is known by its whole name, to be set to on again."""
    new = demo / "typo.cfg"
    tool("fusion", "off", "NoSuchPass", "--file", new, cwd=demo)
    assert "no pass of this name" in tool("fusion", "off", "NoSuch", "--file", new, cwd=demo, code=2).text
    tool("fusion", "on", "NoSuchPass", "--file", new, cwd=demo)
    assert switches_of(new)["GraphFusion"]["NoSuchPass"] == "on"


def test_where_the_switches_are_and_what_comes_next(tmp_path: Path) -> None:
    """The training reads them: they are no result, which --work holds."""
    layers().with_part("one/MatMul", wrong=negated).write(tmp_path / "precision_data")
    work = ("--work", "elsewhere")
    run = tool(*work, "fusion", "off", "MatMulBiasAddFusionPass", cwd=tmp_path)
    assert "it is written in the data folder and not below --work" in run.text
    assert (tmp_path / "precision_data" / "fusion" / "fusion_switch.cfg").is_file()
    assert run.out.splitlines()[-1].strip() == "precision-tool --work elsewhere ac -c"
    tool(*work, "ac", "-c", cwd=tmp_path)
    again = tool(*work, "fusion", "off", "MatMulBiasAddFusionPass", cwd=tmp_path).out
    assert again.splitlines()[-1].strip() == "precision-tool --work elsewhere ac -c --since"


def test_a_part_of_a_name_and_a_misspelt_one(demo: Path, check: str) -> None:
    """A part of one known name is that pass; what may be several, or is built like none, is not written."""
    new = demo / "new.cfg"
    run = tool("fusion", "off", "biasadd", "--file", new, cwd=demo)
    assert "biasadd: understood as MatMulBiasAddFusionPass" in run.text
    assert switches_of(new)["GraphFusion"]["MatMulBiasAddFusionPass"] == "off"
    before = new.read_bytes()
    for name, words in [
        ("Tbe", f"it is a part of several: {GUILTY}, TbeMatmulElemwiseFusionPass"),
        ("MatMulBiasAdFusion", "it may be misspelt: MatMulBiasAddFusionPass"),
        ("Nonsense", "does not look like one"),
    ]:
        for line in (["off", name], ["bisect", "--check", check, "--passes", name]):
            run = tool("fusion", *line, "--file", new, cwd=demo, code=2)
            assert words in run.text
            assert "--force" in run.text
    assert new.read_bytes() == before
    run = tool("fusion", "off", "Nonsense", "--force", "--file", new, cwd=demo)
    assert "no pass of this name is in the data" in run.text
    # Nobody knows its section: GE looks in the one it belongs to, and passes over it in the other.
    assert [switches_of(new)[section]["Nonsense"] for section in ("GraphFusion", "UBFusion")] == ["off", "off"]
    tool("fusion", "on", "Nonsense", "--file", new, cwd=demo)  # the file has it
    assert switches_of(new)["GraphFusion"]["Nonsense"] == "on"


def test_an_unknown_pass_gets_a_warning_with_the_closest(demo: Path) -> None:
    new = demo / "new.cfg"
    run = tool("fusion", "off", "MatmulBiasaddFusionpass", "--file", new, cwd=demo)
    assert "no pass of this name is in the data; the closest are MatMulBiasAddFusionPass" in run.text
    assert switches_of(new)["GraphFusion"]["MatmulBiasaddFusionpass"] == "off"  # GE may know it


def test_a_pass_that_is_never_switched_off_is_refused(demo: Path) -> None:
    new = demo / "new.cfg"
    run = tool("fusion", "off", "AReduceMeanFusionPass", "--file", new, cwd=demo, code=2)
    assert "AReduceMeanFusionPass: GE never switches it off" in run.text
    assert "keep_dtype" in run.text
    assert not new.exists()
    new.write_text('{"Switch": {"GraphFusion": {"AReduceMeanFusionPass": "off"}}}')
    assert "off (no effect: always on)" in tool("fusion", "show", "--file", new, cwd=demo).text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["off"], "no pass is named"),
        (["off", "ALL"], "`fusion all-off`"),
        (["show", "APass"], "APass only goes with off, on, bisect"),
        (["blame", "--check", "true"], "--check only goes with bisect"),
        (["--threshold", "0"], "--threshold only goes with blame"),
        (["list", "--workers", "0"], "--workers only goes with blame"),
        (["-l", "3"], "-l only goes with blame"),
        (["list", "--repeat", "1"], "--repeat only goes with bisect"),
        (["show", "-l", "3"], "-l only goes with blame"),
        (["list", "--installed"], "--installed only goes with show, off, on, all-off, reset"),
        (["off", "APass", "--file", "a", "--off-file"], "not allowed with"),
        (["melt"], "invalid choice"),
        (["bisect"], "no command is named"),
        (["bisect", "--check", "true", "--passes", "PackFusionPass"], "GE never switches it off"),
        (["blame", "-lt", "precision_data/npu/debug_1"], "name both"),
        (["off", "APass,BPass"], "'APass,BPass' is not the name of a pass"),
        (["on", "A Pass"], "'A Pass' is not the name of a pass"),
        (["bisect", "--check", "true", "--passes", "APass,BPass"], "'APass,BPass' is not the name of a pass"),
        (["show", "--file", "misspelt.cfg"], "misspelt.cfg"),
    ],
)
def test_wrong_use(demo: Path, arguments: list[str], words: str) -> None:
    assert words in tool("fusion", *arguments, cwd=demo, code=2).text


def test_what_ge_does_with_a_file_is_shown(demo: Path) -> None:
    path = demo / "my.cfg"
    path.write_text('{"Switch": {"GraphFusion": {\n"ALL": "off", "A": "off",\n"A": "on"}}}')
    run = tool("fusion", "show", "--file", path, cwd=demo)
    assert "GE accepts this file note: line 3: 'A' is also in line 2; GE takes the last" in run.text
    assert "stay on FusedInferAttentionScoreQuantFusionPass, GridSampler3DFusionPass" in run.text
    assert "TbeMatmulFixPipeFusionPass" not in run.text  # of the other section
    path.write_text('{"Switch": {"GraphFusion": {"A": "off",\n}}, "Priority": {"UBFusion": {"Top": {"A": "1000"}}}}')
    run = tool("fusion", "show", "--file", path, cwd=demo)
    assert "GE refuses this file: line 1: a comma after the last member" in run.text
    assert "GE refuses this file: Priority, UBFusion, Top, A: '1000' is not between 0 and 999" in run.text
    (found,) = tool("fusion", "show", "--file", path, "--json", cwd=demo).json["files"]
    assert [found["passes"], len(found["refused"])] == [{"GraphFusion": {"A": False}}, 2]
    path.write_text("")
    run = tool("fusion", "show", "--file", path, cwd=demo)
    assert "GE refuses this file: it is empty" in run.text
    run = tool("fusion", "off", "APass", "--section", "UBFusion", "--file", path, cwd=demo)
    assert "before, it is empty; the file is written again" in run.text
    assert "GE accepts this file" in tool("fusion", "show", "--file", path, cwd=demo).text


def test_all_of_one_section_off_counts_the_passes_of_that_section(demo: Path) -> None:
    path = demo / "my.cfg"
    path.write_text('{"Switch": {"UBFusion": {"ALL": "off"}}}')
    assert "in the data 2 of 4 passes are off" in tool("fusion", "show", "--file", path, cwd=demo).text


@pytest.mark.parametrize("action", [["off", "APass"], ["bisect", "--check", "true", "--passes", "APass"]])
def test_a_file_that_ge_refuses_is_not_written(demo: Path, action: list[str]) -> None:
    """Members that the tool does not edit are the user's to mend."""
    path = demo / "my.cfg"
    path.write_text('{"Switch": {}, "Priority": {"UBFusion": {"Top": {"A": 1}}}}')
    before = path.read_bytes()
    run = tool("fusion", *action, "--file", path, cwd=demo, code=2)
    assert "my.cfg: GE would refuse this file: Priority, UBFusion, Top, A: 1 is not a number as a string" in run.text
    assert "reset" in run.text
    assert path.read_bytes() == before


@pytest.mark.parametrize("action", [["show"], ["off", "APass"], ["all-off"], ["bisect", "--check", "true"]])
def test_a_file_that_cannot_be_read_is_refused_with_its_line(demo: Path, action: list[str]) -> None:
    path = demo / "my.cfg"
    path.write_text('{"Switch": {\n"GraphFusion": {"A": "off",\n"B": "of"}}}')
    before = path.read_bytes()
    run = tool("fusion", *action, "--file", path, cwd=demo, code=2)
    assert 'my.cfg line 3: B: "of" is neither' in run.text
    assert path.read_bytes() == before
    tool("fusion", "reset", "--file", path, cwd=demo)
    assert path.read_text() == render(SHIPPED_SWITCH)
    assert (demo / "my.cfg.last").read_bytes() == before


# --- blame ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_blame_finds_which_run_is_fused(tmp_path: Path, generated: tuple[Path, DemoTruth], swapped: bool) -> None:
    root, truth = generated
    for number in (0, 1):
        (tmp_path / "precision_data" / "npu").mkdir(parents=True, exist_ok=True)
        target = 1 - number if swapped else number
        (tmp_path / "precision_data" / "npu" / f"debug_{target}").symlink_to(root / "npu" / f"debug_{number}")
    before = fingerprint(root / "npu")
    run = tool("fusion", "blame", "--json", "--fail", cwd=tmp_path, code=1)
    (found,) = run.json
    assert found["switch_off"] == list(truth.culprit_passes)
    assert f"/precision_data/npu/debug_{0 if swapped else 1}/" in found["fused"]
    assert fingerprint(root / "npu") == before


@pytest.mark.parametrize("columns", [80, 120])
def test_blame_and_what_it_writes(demo: Path, package: dict[str, str], columns: int) -> None:
    run = tool("fusion", "blame", "--write", cwd=demo, env=package, columns=columns)
    assert f"{GUILTY}: guilty" in run.text
    assert f"switch off: {GUILTY}" in run.text
    assert "AReduceMeanFusionPass clean" in run.text
    assert "npu_tf_config.FUSION_SWITCH_FILE" in run.text
    assert switches_of(switch_file(demo))["UBFusion"] == {"TbePool2dQuantFusionPass": "on", GUILTY: "off"}
    assert only_result(demo / "precision_data" / "temp").is_file()


def test_the_newest_result_is_that_of_a_comparison_with_the_benchmark(demo: Path) -> None:
    """Not the one that `fusion blame` made for itself, nor that of two NPU runs."""
    tool("fusion", "blame", cwd=demo)
    assert "no complete result file" in tool("ac", cwd=demo, code=2).err
    # Of two NPU runs, where there is nothing else.
    tool("vc", "-cf", cwd=demo)
    assert "debug_0" in tool("vcs", "--json", cwd=demo).results[0]["benchmark"]
    tool("vc", cwd=demo)
    for newer in (("fusion", "blame"), ("fusion", "blame", "--benchmark"), ("vc", "-cf")):
        run = tool(*newer, cwd=demo)
        for words in (("ac",), ("vcs",)):
            (result,) = tool(*words, "--json", cwd=demo).results
            assert result["benchmark"].endswith("precision_data/tf/dump"), newer
        told = "a newer result compares two NPU runs: `vcs -f "
        assert (told in tool("vcs", cwd=demo).err) == (newer == ("vc", "-cf"))
        ops = tool("ls", "--json", cwd=demo).json
        assert any(op["cosine"] is not None for op in ops["graphs"][0]["ops"])
    path = run.out.splitlines()[-1].split()[-1]
    assert "debug_0" in tool("vcs", "-f", path, "--json", cwd=demo).results[0]["benchmark"]


def test_blame_of_one_run_with_the_benchmark(demo: Path, generated: tuple[Path, DemoTruth]) -> None:
    """Asked for, and where there is no run without fusion."""
    (found,) = tool("fusion", "blame", "--benchmark", "--json", cwd=demo).json
    assert found["switch_off"] == [GUILTY]
    root = demo / "precision_data" / "npu"
    root.unlink()
    root.mkdir()
    (root / "debug_0").symlink_to(generated[0] / "npu" / "debug_1")
    run = tool("fusion", "blame", cwd=demo)
    assert "only debug_0 has both a dump and a graph, so the benchmark is used for the comparison" in run.text
    assert f"switch off: {GUILTY}" in run.text


def test_a_pair_that_is_right(tmp_path: Path) -> None:
    """Nothing is guilty, nothing is written, and --fail does not fail."""
    data = Node(name="data", type="GetNext", output=values(-1, 2, 3), originals=("data",))
    relu = Node(name="a/Relu", type="Relu", inputs=(data,), output=values(0, 2, 3), originals=("a/Relu",))
    square = Node(name="a/Square", type="Square", inputs=(relu,), output=values(0, 4, 9), originals=("a/Square",))
    fused = Node(name="a/Relua/Square", type="Relu", inputs=(data,), output=values(0, 4, 9),
                 originals=("a/Relu", "a/Square"), passes=("ChainPass",))  # fmt: skip
    small_tree(tmp_path / "precision_data", [data, fused])
    small_tree(tmp_path / "precision_data", [data, relu, square], run="debug_1")
    path = tmp_path / "my.cfg"
    run = tool("fusion", "blame", "--write", "--fail", "--file", path, cwd=tmp_path)
    assert "no pass is guilty: every fused op that could be judged computes correctly" in run.text
    assert "nothing to write" in run.text
    assert not path.exists()
    wrong = Node(name="a/Relua/Square", type="Relu", inputs=(data,), output=values(0, 4, 1),
                 originals=("a/Relu", "a/Square"), passes=("PackFusionPass",))  # fmt: skip
    shutil.rmtree(tmp_path / "precision_data" / "npu" / "debug_0")
    small_tree(tmp_path / "precision_data", [data, wrong])
    small_tree(tmp_path / "precision_data", [data, relu, square], run="debug_1")
    for number in (0, 1):  # without a switchable pass anywhere the pair has to be named
        assert (tmp_path / "precision_data" / "npu" / f"debug_{number}").is_dir()
    folders = ("-lt", "precision_data/npu/debug_0/dump", "-rt", "precision_data/npu/debug_1/dump")
    run = tool("fusion", "blame", *folders, cwd=tmp_path)
    assert "no switch avoids the fault in a/Relua/Square" in run.text
    assert "mixed_precision_list" in run.text
    assert "keep_dtype" in run.text
    assert "vendor" in run.text


def test_long_names_are_neither_broken_nor_cut(tmp_path: Path) -> None:
    scope = "a_scope_with_a_long_name_for_a_terminal/" * 3
    data = Node(name="data", type="GetNext", output=values(-1, 2, 3), originals=("data",))
    relu = Node(name=f"{scope}Relu", type="Relu", inputs=(data,), output=values(0, 2, 3))
    square = Node(name=f"{scope}Square", type="Square", inputs=(relu,), output=values(0, 4, 9))
    fused = Node(name="fused", type="Relu", inputs=(data,), output=values(0, 4, 1),
                 originals=(relu.name, square.name), passes=("ChainPass",))  # fmt: skip
    small_tree(tmp_path / "precision_data", [data, fused])
    small_tree(tmp_path / "precision_data", [data, relu, square], run="debug_1")
    run = tool("fusion", "blame", cwd=tmp_path, columns=80)
    shown = run.out[run.out.index("original ops") :]
    assert shown.split()[2:4] == [f"{relu.name},", square.name]


def _cut_graph(root: Path, number: int) -> Path:
    """Damages the graph of a run; no link to the shared demo is written through."""
    (graph,) = (root / "npu" / f"debug_{number}" / "graph").glob("ge_proto_*_graph_1_Build.txt")
    graph.write_bytes(graph.read_bytes()[:3000])
    return graph


@pytest.mark.parametrize("options", [[], ["--benchmark"], ["--fail"]])
def test_a_damaged_graph_of_the_fused_run_is_no_all_clear(
    tmp_path: Path, generated: tuple[Path, DemoTruth], options: list[str]
) -> None:
    """The run without fusion does not pass for it; the reason is told once."""
    root = tmp_path / "precision_data"
    shutil.copytree(generated[0], root, symlinks=True)
    graph = _cut_graph(root, 1)
    run = tool("fusion", "blame", *options, cwd=tmp_path, code=2)
    assert "no pass is guilty" not in run.text
    assert "the graph of the run with fusion cannot be used: debug_1" in run.text
    assert run.text.count(graph.name) == 1
    folders = ("-lt", "precision_data/npu/debug_1/dump", "-rt", "precision_data/npu/debug_0/dump")
    if "--benchmark" not in options:
        assert "the text is cut off" in tool("fusion", "blame", *folders, *options, cwd=tmp_path, code=2).text
    run = tool("graphs", "diff", cwd=tmp_path, code=2)
    assert run.text.count(graph.name) == 1
    assert "still open" not in run.text


def test_a_damaged_graph_of_the_other_run(tmp_path: Path, generated: tuple[Path, DemoTruth]) -> None:
    """The benchmark takes its place."""
    root = tmp_path / "precision_data"
    shutil.copytree(generated[0], root, symlinks=True)
    _cut_graph(root, 0)
    run = tool("fusion", "blame", cwd=tmp_path)
    assert "the benchmark is used for the comparison" in run.text
    assert f"switch off: {GUILTY}" in run.text


def test_nothing_judged_is_no_all_clear(demo: Path) -> None:
    """A run with nothing but passes that are always on, against the benchmark."""
    folders = ("-lt", "precision_data/npu/debug_0/dump", "-rt", "precision_data/tf/dump")
    run = tool("fusion", "blame", *folders, "--fail", cwd=demo, code=1)
    assert "nothing was judged: no op of a pass that a switch file can turn off could be judged" in run.text
    assert "no pass is guilty" not in run.text
    (found,) = tool("fusion", "blame", *folders, "--json", cwd=demo).json
    assert found["judged"] is False


def test_blame_ends_with_a_line_to_copy(demo: Path) -> None:
    place = ["--data", str(demo / "precision_data")]
    run = tool(*place, "fusion", "blame", cwd=demo)
    (line,) = [line.strip() for line in run.out.splitlines() if " fusion off " in line]
    assert line.split()[1:3] == place
    assert "GE accepts this file" in tool(*line.split()[1:], cwd=demo).out


@pytest.mark.parametrize("command", [["fusion", "blame"], ["vc", "-cf"]])
def test_a_pair_that_is_none(tmp_path: Path, generated: tuple[Path, DemoTruth], command: list[str]) -> None:
    """It says what is wrong and what to collect; `tests/data/test_fusion_pair.py` has all that may be wrong."""
    root = tmp_path / "precision_data" / "npu"
    for number in (0, 1):
        shutil.copytree(generated[0] / "npu" / "debug_1", root / f"debug_{number}")
    run = tool(*command, cwd=tmp_path, code=2)
    assert "were both compiled with fusion: 5 and 5 of their ops" in run.text
    assert "fusion_off|dump" in run.text


def test_graphs_that_name_no_pass(tmp_path: Path, generated: tuple[Path, DemoTruth]) -> None:
    """Which run is fused can be told all the same, and the two be compared; whose fault it is cannot."""
    root = tmp_path / "precision_data"
    shutil.copytree(generated[0] / "npu", root / "npu")
    for graph in (root / "npu").rglob("ge_proto_*_Build.txt"):
        graph.write_text(graph.read_text("ascii").replace('"pass_name"', '"some_name"'), "ascii")
    assert "debug_1/dump" in tool("vc", "-cf", cwd=tmp_path).out.splitlines()[0]
    run = tool("fusion", "blame", cwd=tmp_path, code=2)
    assert "5 fused ops, but none names its pass" in run.text
    assert "DUMP_GE_GRAPH=2" in run.text


# --- bisect -----------------------------------------------------------------------------------------------------------

#: Succeeds when all passes of its arguments are off in the switch file.
CHECK = """
import json, os, sys
from pathlib import Path
sections = json.loads(Path(os.environ["PRECISION_TOOL_FUSION_SWITCH_FILE"]).read_text())["Switch"]
off = {name for passes in sections.values() for name, word in passes.items() if word == "off"}
print("off:", *sorted(off))
sys.exit(0 if set(sys.argv[1:]) <= off else 5)
"""
NAMES = [f"Pass{number:02}" for number in range(20)]


@pytest.fixture
def check(tmp_path: Path) -> str:
    script = tmp_path / "check.py"
    script.write_text(CHECK)
    return f"{sys.executable} {script}"


def bisect(cwd: Path, command: str, *arguments: str | Path, code: int = 0) -> Finished:
    return tool("fusion", "bisect", "--check", command, "--file", "my.cfg", *arguments, cwd=cwd, code=code)


MINE = '{"Switch": {"GraphFusion": {"Mine": "off"}, "UBFusion": {}}}\n'


def test_a_bisection(tmp_path: Path, check: str) -> None:
    (tmp_path / "precision_data").mkdir()
    (tmp_path / "my.cfg").write_text(MINE)
    run = bisect(tmp_path, f"{check} Pass03 Pass17 Mine", "--passes", *NAMES)
    assert "2 changes are needed for the check to succeed: Pass03, Pass17" in run.text
    assert (tmp_path / "my.cfg").read_text() == MINE  # put back
    assert "try 1: 0 of 20 changes: fails (5)" in run.err
    assert "20 changes to search: about " in run.err
    assert "at most" not in run.err  # nothing limits it
    logs = sorted((tmp_path / "precision_data" / "temp" / "fusion_bisect").glob("try_*.log"))
    assert len(logs) == run.err.count("\ntry ") + run.err.startswith("try ")
    assert logs[0].read_text() == "off: Mine\n"
    table = " ".join(run.out.split())
    assert "none (try 1 again)" in table
    assert "Pass03, Pass17 (try " in table
    assert run.err.count("changes again: ") == 2
    assert "switch them off, as this command with --write does" in run.text
    assert "precision-tool fusion off Pass03 Pass17" in run.text
    # Once more: every answer is known, also of what the result rests on.
    again = bisect(tmp_path, f"{check} Pass03 Pass17 Mine", "--passes", *NAMES, "--write")
    assert "of an earlier search are used" in again.text
    assert "this search was finished before: nothing was run" in again.text
    assert "of 20 changes" not in again.err
    assert len([*logs[0].parent.glob("try_*.log")]) == len(logs)
    # Asked for more often than before, the answers are not enough.
    assert "of 20 changes" in bisect(tmp_path, f"{check} Pass03 Pass17 Mine", "--repeat", "2", "--passes", *NAMES).err
    switches = read_switches(str(tmp_path / "my.cfg"))
    assert [(where, name) for where, name, on in switches.named() if not on] == [
        ("GraphFusion", "Mine"), ("GraphFusion", "Pass03"), ("GraphFusion", "Pass17"),
        ("UBFusion", "Pass03"), ("UBFusion", "Pass17"),
    ]  # fmt: skip


def test_what_the_data_names_is_searched(demo: Path, check: str) -> None:
    run = bisect(demo, f"{check} {GUILTY}", "--json")
    found = run.json
    assert (found["outcome"], found["off"]) == ("found", [GUILTY])
    assert found["passes"] == ["MatMulBiasAddFusionPass", GUILTY, "TbeMatmulElemwiseFusionPass"]
    assert "not searched, as GE never switches them off: AReduceMeanFusionPass" in run.text
    assert not (demo / "my.cfg").exists()  # as before


#: As GE does it: each pass is looked for in its own section only; what GE's own file names on is off by name alone.
GE_CHECK = """
import json, os, sys
from pathlib import Path
switch = json.loads(Path(os.environ["PRECISION_TOOL_FUSION_SWITCH_FILE"]).read_text())["Switch"]
for wanted in sys.argv[1:]:
    section, name = wanted.split("/")
    if switch[section].get(name) != "off":
        sys.exit(5)
"""


@pytest.mark.parametrize("section", ["UBFusion", "GraphFusion"])
def test_a_bisection_writes_passes_where_ge_looks_for_them(tmp_path: Path, section: str) -> None:
    """In the section that the data tells, of graphs alone in both; and what stays on by GE's own file is searched."""
    data = Node(name="data", type="GetNext", output=values(-1, 2, 3), originals=("data",))
    fused = Node(name="fused", type="Relu", inputs=(data,), output=values(0, 4, 1), originals=("a", "b"),
                 passes=("MatmulTransdataFusionPass",))  # fmt: skip
    small_tree(tmp_path / "precision_data", [data, fused])
    (tmp_path / "check.py").write_text(GE_CHECK)
    check = f"{sys.executable} {tmp_path / 'check.py'}"
    run = bisect(tmp_path, f"{check} {section}/MatmulTransdataFusionPass")
    assert "MatmulTransdataFusionPass - - 1 - section unknown" in tool("fusion", cwd=tmp_path).text
    assert "1 change is needed for the check to succeed: MatmulTransdataFusionPass" in run.text
    kind = "ub_fusion" if section == "UBFusion" else "graph_fusion"
    counts = {"AutomaticUbFusion": {"match_times": 1, "effect_times": 1}}
    (tmp_path / "fusion_result.json").write_text(json.dumps({"session_and_graph_id": "0_1", kind: counts}))
    run = bisect(tmp_path, f"{check} {section}/AutomaticUbFusion {section}/MatmulTransdataFusionPass", "--write")
    written = switches_of(tmp_path / "my.cfg")
    assert written[section]["AutomaticUbFusion"] == "off"
    assert "AutomaticUbFusion" not in written["GraphFusion" if section == "UBFusion" else "UBFusion"]
    late = "GraphFusion/LayerNormGradV3FusionPass UBFusion/TbeMatmulFixPipeFusionPass"
    run = bisect(tmp_path, f"{check} {late}")
    assert "try 2: 2 of 2 changes: fails" in run.err
    assert "try 3: 8 of 8 changes: succeeds" in run.err
    assert "2 changes are needed for the check to succeed: LayerNormGradV3FusionPass, TbeMat" in run.text


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("true", "there is nothing to find"),
        ("false", "none of them is the cause"),
        ("sleep 30", "every try that failed ran out of time"),
    ],
)
def test_nothing_to_be_found(tmp_path: Path, command: str, words: str) -> None:
    (tmp_path / "precision_data").mkdir()
    run = bisect(tmp_path, command, "--passes", *NAMES, "--timeout", "1", code=int(command != "true"))
    assert words in run.text
    found, _, advice = run.out.partition("What is left to do")
    assert found.splitlines()[-1].startswith("the check ")  # what came out stands before the advice
    assert bool(advice) == (command != "true")
    assert ("keep_dtype" in run.text) == (command != "true")


def test_a_check_that_wavers(tmp_path: Path) -> None:
    (tmp_path / "precision_data").mkdir()
    run = bisect(tmp_path, "test ! -e seen && touch seen", "--passes", *NAMES, code=2)
    assert "the check gave different results for the same changes: none" in run.text
    assert "nothing can be concluded" in run.text
    (tmp_path / "seen").unlink()
    run = bisect(
        tmp_path, "test -e seen || { touch seen; false; }", "--passes", *NAMES, "--repeat", "3", "--fresh", code=2
    )
    assert "the check gave different results" in run.text


def test_a_check_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "precision_data").mkdir()
    run = bisect(tmp_path, "no_such_command_here", "--passes", *NAMES, code=2)
    assert "ended with 127: there is no such command" in run.text
    assert not (tmp_path / "my.cfg").exists()
    run = tool("fusion", "bisect", "--check", "true", cwd=tmp_path, code=2)
    assert "name the passes with --passes" in run.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_bisection_is_taken_up_again(tmp_path: Path, check: str, number: signal.Signals) -> None:
    """The user's switch file is put back, after a kill by the next start, and finished tries are not run again."""
    (tmp_path / "precision_data").mkdir()
    (tmp_path / "my.cfg").write_text(MINE)
    command = f"test -e go || test ! -s count || test $(wc -l < count) -lt 3 || sleep 60; echo >> count; {check} Pass05"
    arguments = ["fusion", "bisect", "--check", command, "--file", "my.cfg", "--passes", *NAMES]
    with subprocess.Popen(
        [*TOOL, *arguments], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", start_new_session=True, preexec_fn=hear_signals,  # noqa: PLW1509  # no threads here
    ) as process:  # fmt: skip
        end = time.monotonic() + HANG
        while time.monotonic() < end and not (tmp_path / "precision_data/temp/fusion_bisect/try_004.log").exists():
            time.sleep(0.02)
        assert (tmp_path / "my.cfg").read_text() != MINE
        process.send_signal(number)
        _, err = process.communicate(timeout=HANG)
    assert "Traceback" not in err
    if number != signal.SIGKILL:
        assert "3 tries kept: the same command continues the search" in err
        assert (tmp_path / "my.cfg").read_text() == MINE
    (tmp_path / "go").touch()
    run = tool(*arguments, cwd=tmp_path)
    assert "3 tries of an earlier search are used" in run.text
    assert ("was killed" in run.text) == (number == signal.SIGKILL)
    assert "1 change is needed for the check to succeed: Pass05" in run.text
    assert (tmp_path / "my.cfg").read_text() == MINE
    log = tmp_path / "precision_data/temp/fusion_bisect/state.json"
    assert len(json.loads(log.read_text())["tries"]) > 3


def test_the_switch_file_is_put_back_to_the_letter(tmp_path: Path, check: str) -> None:
    """With the line ends and the byte order mark of another system, and behind a link."""
    (tmp_path / "precision_data").mkdir()
    mine = b"\xef\xbb\xbf" + MINE.replace("\n", "\r\n").encode()
    (tmp_path / "real.cfg").write_bytes(mine)
    (tmp_path / "my.cfg").symlink_to("real.cfg")
    run = bisect(tmp_path, f"{check} Pass03 Mine", "--passes", *NAMES)
    assert "1 change is needed for the check to succeed: Pass03" in run.text
    assert (tmp_path / "my.cfg").is_symlink()
    assert (tmp_path / "real.cfg").read_bytes() == mine


def test_tries_with_other_switches_are_not_used(tmp_path: Path, check: str) -> None:
    (tmp_path / "precision_data").mkdir()
    (tmp_path / "my.cfg").write_text(MINE)
    bisect(tmp_path, f"{check} Pass03 Mine", "--passes", *NAMES)
    (tmp_path / "my.cfg").write_text(MINE.replace("Mine", "Another"))
    run = bisect(tmp_path, f"{check} Pass03 Mine", "--passes", *NAMES, code=1)
    assert "were made with other switches and are not used" in run.text
    assert "none of them is the cause" in run.text.partition("What is left to do")[0]  # before the advice
    run = bisect(tmp_path, f"{check} Pass03 Another", "--passes", *NAMES)  # another command
    assert "earlier attempt" not in run.text
    (tmp_path / "my.cfg").write_text(MINE.replace('"Mine"', '"Pass03": "off", "Another"'))
    run = bisect(tmp_path, f"{check} Pass03 Another", "--passes", *NAMES)  # what a search sets itself is no difference
    assert "of an earlier search are used" in run.text


def killed(tmp_path: Path, check: str) -> Path:
    """A switch file as a bisection leaves it that is killed between the note of a try and its switch file."""
    (tmp_path / "precision_data").mkdir()
    mine = tmp_path / "my.cfg"
    mine.write_text(MINE)
    bisect(tmp_path, f"{check} Pass03", "--passes", "Pass02", "Pass03")
    path = tmp_path / "precision_data/temp/fusion_bisect/state.json"
    state = json.loads(path.read_text())
    before, _ = state["written"]
    path.write_text(json.dumps({**state, "running": True}))
    mine.write_text(before)
    return mine


@pytest.mark.parametrize("file", ["my.cfg", "other.cfg"])
def test_a_killed_attempt_is_mended_whatever_is_searched_next(tmp_path: Path, check: str, file: str) -> None:
    mine = killed(tmp_path, check)
    arguments = ["fusion", "bisect", "--check", f"{check} Pass04", "--file", file, "--passes", *NAMES]
    assert "my.cfg is restored as it was before" in tool(*arguments, cwd=tmp_path).text
    assert mine.read_text() == MINE


def test_an_edit_after_a_killed_bisection(tmp_path: Path, check: str) -> None:
    """It would be made in the switches of a try: it is refused until the user's own file is back, or given up."""
    mine = killed(tmp_path, check)
    left = mine.read_text()
    told = "my.cfg holds the switches of a try of `fusion bisect`, which is running or was killed"
    assert told in tool("fusion", "show", "--file", "my.cfg", cwd=tmp_path).err
    assert told not in tool("fusion", "off", "Pass07", "--file", "another.cfg", cwd=tmp_path).text
    for word in (["off", "Pass07"], ["on", "Pass03"], ["all-off"], ["reset"]):
        run = tool("fusion", *word, "--file", "my.cfg", cwd=tmp_path, code=2)
        assert told in run.err
        assert "restores your file" in run.text
    elsewhere = ["--work", "elsewhere", "fusion", "bisect", "--check", check, "--file", "my.cfg", "--passes", "Pass03"]
    assert told in tool(*elsewhere, cwd=tmp_path, code=2).err
    assert mine.read_text() == left
    path = tmp_path / "precision_data/temp/fusion_bisect/state.json"
    state = json.loads(path.read_text())
    for name, value in (("file", "a\0b"), ("written", [[]]), ("original", 3), ("tries", 3), ("version", 0)):
        path.write_text(json.dumps({**state, name: value}))
        assert "bisect" not in tool("fusion", "show", "--file", "my.cfg", cwd=tmp_path).err
    path.unlink()
    assert "bisect" not in tool("fusion", "off", "Pass07", "--file", "my.cfg", cwd=tmp_path).err


def test_no_edit_while_it_is_searched(tmp_path: Path, check: str) -> None:
    """Wherever the results of the edit's own session would go."""
    (tmp_path / "precision_data").mkdir()
    (tmp_path / "no_data").mkdir()
    (tmp_path / "my.cfg").write_text(MINE)
    word = shlex.join(map(str, TOOL))
    command = f"""
        {word} fusion show --file my.cfg > shown 2>&1
        {word} fusion off Pass09 --file my.cfg > refused 2>&1; echo $? > code
        {word} --data no_data fusion off Pass09 --file my.cfg > refused_too 2>&1; echo $? >> code
        mkdir -p another
        {word} fusion off Pass09 --file another/my.cfg > /dev/null || exit 77
        {check} Pass03"""
    run = bisect(tmp_path, command, "--passes", "Pass03", "Pass04")
    assert "1 change is needed for the check to succeed: Pass03" in run.text
    for name in ("shown", "refused"):
        assert "holds the switches of a try" in " ".join((tmp_path / name).read_text().split())
    assert "a bisection is running" in (tmp_path / "refused_too").read_text()
    assert (tmp_path / "code").read_text() == "2\n2\n"
    assert (tmp_path / "my.cfg").read_text() == MINE


def test_two_at_a_time_are_refused(tmp_path: Path, check: str) -> None:
    """The one that runs is not taken for a killed one, and its switch file is left alone."""
    (tmp_path / "precision_data").mkdir()
    (tmp_path / "my.cfg").write_text(MINE)
    within = [
        *TOOL,
        "--work",
        "elsewhere",
        "fusion",
        "bisect",
        "--check",
        "true",
        "--file",
        "my.cfg",
        "--passes",
        "Pass01",
    ]
    command = f"{shlex.join(map(str, within))} 2> refused; echo $? > code; {check} Pass03"
    run = bisect(tmp_path, command, "--passes", "Pass03", "Pass04")
    assert "1 change is needed for the check to succeed: Pass03" in run.text
    assert (tmp_path / "code").read_text() == "2\n"
    assert "holds the switches of a try" in (tmp_path / "refused").read_text()
    assert (tmp_path / "my.cfg").read_text() == MINE


STATE_WITHOUT = {
    "version": 4, "check": "true", "names": ["Pass03"], "file": "my.cfg", "base": "{}", "running": True,
    "original": "Pass03:on\n", "written": ["Pass03:off\n"],
    "tries": [{"changes": [], "succeeded": False, "code": 1, "seconds": 0.1, "log": "try_001.log"}],
}  # fmt: skip


@pytest.mark.parametrize("name", [*STATE_WITHOUT, *STATE_WITHOUT["tries"][0], ""])  # type: ignore[index]
@pytest.mark.parametrize("value", [None, 3, "x", [], [[]], {}, 1e400, {"x": 1}, -1, True])
def test_a_state_of_another_shape(tmp_path: Path, name: str, value: object) -> None:
    """Whoever wrote it: it is used where it says all that is needed, and else as if there were none."""
    state: Any = json.loads(json.dumps(STATE_WITHOUT))
    if name in state["tries"][0]:
        state["tries"][0][name] = value
    elif name:
        state[name] = value
    else:
        state = value
    folder = tmp_path / "bisect"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps(state))
    path = tmp_path / "my.cfg"
    path.write_text("Pass03:on\n")
    file = SwitchFile(path=str(path), target=str(path), shipped=SHIPPED_SWITCH)
    is_bisected(folder, str(path))
    search = BisectRun(folder=folder, check="true", names=("Pass03",), passes={"Pass03": "Pass03"}, file=file)
    with contextlib.chdir(tmp_path), search.alone():
        search.open(fresh=False)
        assert all(isinstance(one.seconds, float) for one in search.tries)
        search.close()
    assert path.read_text() == "Pass03:on\n"


# --- graphs diff ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_graph_diff(demo: Path, columns: int) -> None:
    run = tool("graphs", "diff", cwd=demo, columns=columns)
    assert f"{GUILTY} - 2 gone in debug_0" in run.text
    assert "AReduceMeanFusionPass 2 2 always on" in run.text
    assert "fused in debug_1, single ops in debug_0" in run.text
    assert len(run.out.splitlines()) < 50


def test_a_pass_that_is_off_and_still_there(
    tmp_path: Path, generated: tuple[Path, DemoTruth], package: dict[str, str]
) -> None:
    root = tmp_path / "precision_data"
    for number in (0, 1):
        (root / "npu" / f"debug_{number}").mkdir(parents=True)
        for part in ("dump", "graph"):
            (root / "npu" / f"debug_{number}" / part).symlink_to(generated[0] / "npu" / "debug_1" / part)
    tool("fusion", "off", GUILTY, cwd=tmp_path, env=package)
    run = tool("graphs", "diff", cwd=tmp_path, env=package)
    assert f"{GUILTY} 2 2 still there, though off in the switch file" in run.text
    assert "the graphs have the same ops" in run.text


def test_graph_diff_of_two_files(demo: Path) -> None:
    left, right = sorted((demo / "precision_data" / "npu").glob("debug_*/graph/ge_proto_*_graph_1_Build.txt"))
    run = tool("graphs", "diff", left, right, cwd=demo)
    assert f"{GUILTY} - 2 gone in left" in run.text
    assert "name two" in tool("graph", "diff", left, cwd=demo, code=2).text
    assert "no such graph" in tool("graphs", "diff", left, "nowhere.txt", cwd=demo, code=2).text


def test_graph_diff_needs_two(tmp_path: Path) -> None:
    assert "no such data folder" in tool("graphs", "diff", cwd=tmp_path, code=2).text
    small_tree(tmp_path / "precision_data", [Node(name="a", type="Add", output=values(1, 2))])
    assert "only debug_0 has a graph" in tool("graphs", "diff", cwd=tmp_path, code=2).text
