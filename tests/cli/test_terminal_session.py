"""A whole session in a real terminal, as a user has it: keys in, screens out."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import INTERRUPTED, check_golden_text, result_files
from small_tree import faulty_chain, small_tree
from terminal import PROMPT, Terminal

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import generate_ranks

CULPRIT = "conv2/Conv2Dconv2/BiasAddconv2/Relu"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo folder, compared once."""
    folder = tmp_path_factory.mktemp("session")
    generate_demo(folder / "precision_data")
    return folder


@pytest.fixture
def cwd(made: Path, tmp_path: Path) -> Path:
    """A folder of its own for every test."""
    shutil.copytree(made / "precision_data", tmp_path / "precision_data")
    return tmp_path


@pytest.fixture
def terminal(cwd: Path) -> Iterator[Terminal]:
    with Terminal(cwd, columns=100, lines=50) as one:
        one.ready()
        yield one


def test_a_session_from_start_to_exit(terminal: Terminal, cwd: Path) -> None:
    """Start, completion, ac -c, vcs, ls, ni -s, pt, cp, dc, an error, exit."""
    data = cwd / "precision_data"
    assert re.search(r"^debug_0 +\d+ dump files and 3 graph files$", terminal.text, re.MULTILINE)
    assert "ac -c compares and names the first faulty op" in terminal.text

    shown = terminal.run("ac -c -l 1")
    assert CULPRIT in shown
    assert "Verdict" in shown
    (result,) = result_files(data / "temp")
    assert result.name in shown

    assert f"[17] {CULPRIT}" in terminal.run("vcs -l 1")
    terminal.run("set paging off")
    assert CULPRIT in terminal.run("ls -t Conv2D -n relu").replace("\n", "")
    terminal.run(f"ni {CULPRIT} -s 1")
    assert [path.suffix for path in sorted((data / "temp" / "op_graph").iterdir())] == [".gv", ".svg"]
    assert "float16" in terminal.run(f"pt {CULPRIT}")
    assert "0.77" in terminal.run(f"cp {CULPRIT}")
    terminal.run(f"dc {CULPRIT}")
    assert list((data / "temp" / "decode").rglob("*.npy"))
    assert "error: " in terminal.run("ni no_such_op_at_all")
    terminal.run("set paging on")
    terminal.type("exit\r")
    assert terminal.end() == 0


def test_tab_completes_what_is_typed(terminal: Terminal) -> None:
    terminal.type("ni conv2/Conv2Dc\t")
    terminal.wait(lambda: f"{PROMPT} ni {CULPRIT}" in terminal.screen, "the completed name")
    terminal.type("\x15vc\t")
    terminal.expect("list the ops below a cosine similarity")


def test_ctrl_c_clears_a_line_and_leaves_an_empty_prompt(terminal: Terminal) -> None:
    terminal.type("ni half a line")
    terminal.expect("half a line")
    terminal.type("\x03")
    terminal.ready()
    terminal.type("\x03")
    assert terminal.end() == 0


def test_the_terminal_is_not_asked_where_the_cursor_is(terminal: Terminal) -> None:
    """Its answer may come late, after Ctrl+L and Ctrl+C say: then `^[[1;1R` would stand on the screen."""
    sent: list[str] = []
    terminal.process.logfile_send = type("Log", (), {"write": sent.append, "flush": lambda self: None})()
    terminal.type("half a line")
    terminal.expect("half a line")
    terminal.type("\x03")
    terminal.ready()
    terminal.type("\x0c")
    terminal.wait(lambda: terminal.screen[0] == PROMPT, "a cleared screen")
    terminal.type("\x0c\x03")
    assert terminal.end() == 0
    assert sent == ["half a line", "\x03", "\x0c", "\x0c\x03"]


def test_ctrl_d_leaves(terminal: Terminal) -> None:
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_stops_a_long_command_and_comes_back(cwd: Path) -> None:
    big = cwd / "big"
    generate_demo(big / "precision_data", ops=300, size=1 << 20)
    with Terminal(big, lines=50, env=INTERRUPTED) as terminal:
        terminal.ready()
        terminal.type("ac -c\r")
        terminal.wait(lambda: re.search(r" [1-9]\d?%", terminal.text) is not None, "progress")
        terminal.type("\x03")
        terminal.wait(terminal.at_prompt, "prompt after Ctrl+C")
        assert "stopped" in terminal.text
        (partial,) = result_files(big / "precision_data" / "temp")
        assert partial.name.startswith("partial_")
        assert "threshold" in terminal.run("set threshold")  # and goes on
        assert not list((big / "precision_data" / "temp").rglob("*.part"))
        terminal.type("\x04")
        assert terminal.end() == 0


@pytest.mark.parametrize("wait", [0.05, 0.2, 0.4])
def test_ctrl_c_in_the_first_moment_shows_no_traceback(cwd: Path, wait: float) -> None:
    """Worker processes are only starting then."""
    for name in ("x", "y"):  # sparse, and large enough to take seconds
        np.lib.format.open_memmap(cwd / f"{name}.npy", "w+", np.float32, (500_000_000,)).flush()
    with Terminal(cwd, lines=50, env=INTERRUPTED) as terminal:
        terminal.run("set paging off")
        terminal.start("cp x.npy y.npy")
        time.sleep(wait)  # not measured: whenever it comes, the screen must stay clean
        terminal.type("\x03")
        terminal.expect("stopped")
        terminal.ready()
        assert "Traceback" not in terminal.text
        assert "threshold" in terminal.run("set threshold")


def test_a_second_ctrl_c_in_a_hurry_does_not_leave(cwd: Path) -> None:
    with Terminal(cwd, lines=50, env=INTERRUPTED) as terminal:
        terminal.ready()
        np.lib.format.open_memmap(cwd / "x.npy", "w+", np.float32, (500_000_000,)).flush()
        terminal.start("pt x.npy -c")
        time.sleep(0.3)  # until it has something to stop
        terminal.type("\x03")
        terminal.expect("stopped")
        terminal.type("\x03")
        assert "threshold" in terminal.run("set threshold")


def test_ctrl_c_ends_a_shell_command_not_the_prompt(terminal: Terminal) -> None:
    terminal.type("!echo it; echo has begun; sleep 1000\r")
    terminal.expect("\nhas begun")
    time.sleep(0.3)  # until sleep itself runs
    terminal.type("\x03")
    terminal.wait(terminal.at_prompt, "prompt after Ctrl+C")
    assert "still here" in terminal.run("echo still here")


def test_history_is_kept_and_searched(terminal: Terminal, cwd: Path) -> None:
    terminal.run("echo the first session")
    terminal.type("\x04")
    assert terminal.end() == 0
    with Terminal(cwd) as again:
        again.ready()
        again.type("\x1b[A")
        again.expect(f"{PROMPT} echo the first session")
        again.type("\x03")
        again.ready()
        again.type("\x12first")
        again.wait(lambda: any("i-search)`first': echo the first" in line for line in again.screen), "what was found")
        again.type("\r\r")
        again.expect("the first session\n")
        assert "echo the first session" in again.run("history")


def test_pasted_lines_run_one_by_one(terminal: Terminal) -> None:
    terminal.type("\x1b[200~echo one\necho two\n\x1b[201~")
    terminal.wait(lambda: "\none\n" in terminal.text and "\ntwo\n" in terminal.text, "both lines")
    terminal.ready()


def test_a_long_list_is_paged(terminal: Terminal) -> None:
    terminal.type("ls\r")
    terminal.wait(lambda: terminal.screen[-1].startswith(":"), "pager")
    terminal.type("q")
    terminal.ready()


def test_new_dumps_are_seen_while_the_prompt_is_open(terminal: Terminal, cwd: Path) -> None:
    terminal.run("set paging off")
    before = terminal.run("ls dump -t Conv2D")
    leaf = next((cwd / "precision_data" / "npu").rglob("Conv2D.*")).parent
    source = next(leaf.glob("Conv2D.*"))
    shutil.copy(source, leaf / "Conv2D.quite_new.7.1.1772443899999999")
    assert "quite_new" not in before
    assert "quite_new" in terminal.run("ls dump -t Conv2D")
    assert "dump files" in terminal.run("refresh")


@pytest.mark.parametrize("columns", [80, 120])
def test_the_screens_of_a_session(tmp_path: Path, columns: int) -> None:
    """Read them when they change: they are what users see."""
    small_tree(tmp_path / "precision_data", faulty_chain())
    lines = ("help", "ac -c -l 1", "vcs", "ls", "ls dump -l 1", "ni middle/Mul", "pt middle/Mul -p 3",
             "cp middle/Mul -p 2", "dc middle/Mul", "graphs", "ni middel", "vcss", "set threshold 2")  # fmt: skip
    with Terminal(tmp_path, columns=columns, lines=400) as terminal:
        for line in lines:
            terminal.run(line)
        terminal.ready()
        # The terminal breaks the name of the result, which holds the time, in the middle.
        text = re.sub(r"result_(?:\d\n?){14}\.csv", "result_TIME.csv", terminal.text)
        check_golden_text(
            f"session_{columns}.txt", re.sub(r"vector_compare/\d{14}", "vector_compare/TIME", text), tmp_path
        )


def test_a_dumb_terminal_without_colour(cwd: Path) -> None:
    with Terminal(cwd, lines=60, env={"TERM": "dumb"}) as terminal:
        terminal.expect(PROMPT)
        terminal.type("vcs -h\r")
        terminal.expect("example: vcs")
        terminal.type("ac -c\r")
        terminal.expect("Verdict")
        terminal.type("exit\r")
        assert terminal.end() == 0


def test_no_colour(cwd: Path) -> None:
    with Terminal(cwd, env={"NO_COLOR": "1"}) as terminal:
        terminal.ready()
        seen: list[str] = []
        terminal.process.logfile_read = type("Log", (), {"write": seen.append, "flush": lambda self: None})()
        terminal.run("ac -c")
        assert "Verdict" in terminal.text
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", "".join(seen))


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_data_says_what_to_collect(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "precision_data").mkdir()
    with Terminal(tmp_path) as terminal:
        terminal.ready()
        assert ("no data in it yet" if exists else "no such folder") in terminal.text
        assert "npu/debug_0/dump" in terminal.text
        assert "demo generates one to try" in terminal.text
        assert "error: " in terminal.run("ls")


def test_a_study_and_the_step_and_rank_that_the_prompt_keeps(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="fused", fault_step=1, fault_rank=1, benchmark="all")
    with Terminal(tmp_path, columns=100, lines=50) as terminal:
        terminal.ready()
        terminal.run("set paging off")
        shown = terminal.run("ac --all --csv --workers 1")
        assert f"step 1, rank 1: {truth.culprit}" in shown.replace("\n", "")
        assert len(list((tmp_path / "precision_data").rglob("result_step_*_rank_*.csv"))) == 4
        terminal.type("vcs --step 1 --rank 1 -l 1\r")
        terminal.expect("PrecisionTool step 1 rank 1 >")
        assert str(truth.culprit) in terminal.text
        terminal.type(f"ni {truth.culprit}\r")
        terminal.expect("computes incorrectly")
        terminal.type("ls dump -t HcomAllReduce --step all --rank all\r")
        terminal.ready()
        terminal.type("exit\r")
        assert terminal.end() == 0
