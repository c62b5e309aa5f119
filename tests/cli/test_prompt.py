"""The prompt without a terminal: commands as lines of standard input, as scripts send them, and what Tab offers."""

from __future__ import annotations

import dataclasses
import gc
import io
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cmd2
import pytest
from command_line import HANG, TOOL, environment, result_files, tool
from hypothesis import given
from hypothesis import strategies as st
from small_tree import SmallTree, chain, faulty_chain, small_tree

from precision_tool.lib.cli import prompt as module
from precision_tool.lib.cli.command import Output, load_command, tell_notes
from precision_tool.lib.cli.offers import Names
from precision_tool.lib.cli.prompt import KNOBS, Prompt, collect_garbage, quoted
from precision_tool.lib.cli.words import WORDS
from precision_tool.lib.compare.columns import METRIC_COLUMNS
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.logs import LOG_NAME, start_log
from precision_tool.lib.messages import language
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ReportConsole

Open = Callable[[], Prompt]


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    return small_tree(tmp_path / "precision_data", faulty_chain())


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo's data folder, compared once."""
    root = tmp_path_factory.mktemp("demo") / "precision_data"
    generate_demo(root)
    tool("vc", cwd=root.parent)
    return root


@pytest.fixture
def open_prompt(tree: SmallTree, monkeypatch: pytest.MonkeyPatch) -> Open:
    """A prompt on the small tree; what it writes is `prompt.stdout.getvalue()`."""
    monkeypatch.chdir(tree.root.parent)
    return lambda: Prompt(Session(Settings(data=tree.root)), stdin=io.StringIO(), stdout=io.StringIO())


def piped(text: str, cwd: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The prompt with its lines on standard input."""
    run = subprocess.run(
        [*TOOL, *arguments],
        input=text,
        cwd=cwd,
        env=environment(cwd, 100),
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert run.returncode == code, run
    assert "Traceback" not in run.stdout + run.stderr, run
    return run


def output(prompt: Prompt, line: str) -> str:
    """What one line of the prompt prints on standard output."""
    assert isinstance(prompt.stdout, io.StringIO)
    before = len(prompt.stdout.getvalue())
    assert not prompt.onecmd_plus_hooks(line)
    return prompt.stdout.getvalue()[before:]


def offered(prompt: Prompt, line: str) -> tuple[str, ...]:
    """What Tab offers at the end of a line."""
    text = re.split(r"[ |>'\"]", line)[-1]
    return prompt.complete(text, line, len(line) - len(text), len(line)).to_strings()


# --- running -------------------------------------------------------------------------------------------------------


def test_commands_from_standard_input(tree: SmallTree) -> None:
    cwd = tree.root.parent
    run = piped("ac -c\nvcs -l 1\n", cwd)
    assert len(result_files(tree.root / "temp")) == 1
    assert "━ Verdict ━" in run.stdout
    assert "1 of 2 ops below 0.98 shown" in run.stdout
    assert "PrecisionTool" not in run.stdout  # no prompt, no banner: there is nobody
    assert run.stderr == ""


def test_the_exit_code_is_that_of_a_command_that_failed(tree: SmallTree) -> None:
    run = piped("vcs -f nowhere.csv\necho still here\n", tree.root.parent, code=2)
    assert "nowhere.csv" in run.stderr
    assert "still here" in run.stdout


@pytest.mark.parametrize("word", ["exit", "quit"])
def test_leaving(tree: SmallTree, word: str) -> None:
    assert "not reached" not in piped(f"{word}\necho not reached\n", tree.root.parent).stdout


def test_an_unknown_first_word_runs_in_the_shell_after_saying_so(tree: SmallTree) -> None:
    run = piped("printf 'a%sb' '  '\nrun echo two\n!echo three; echo four\n", tree.root.parent)
    assert run.stdout.split("\n") == ["a  btwo", "three", "four", ""]
    assert run.stderr.strip() == "printf is not a command here: run by your shell"


def test_a_word_that_is_neither_names_the_closest(tree: SmallTree) -> None:
    run = piped("vcss -l 1\n", tree.root.parent, code=2)
    assert run.stderr.split("\n")[:2] == ["error: vcss: no such command here, and no such program",
                                          "hint: did you mean vcs or vc?"]  # fmt: skip


def test_help_for_a_word_that_is_none_names_the_closest(tree: SmallTree) -> None:
    run = piped("help lls\n", tree.root.parent, code=2)
    assert run.stderr.split("\n")[0] == "error: help: no command lls"
    assert run.stderr.split("\n")[1].startswith("hint: did you mean ls")


def test_help_is_paged(open_prompt: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is longer than most screens."""
    prompt = open_prompt()
    paged: list[object] = []
    monkeypatch.setattr(prompt, "_can_page", lambda out: True)
    monkeypatch.setattr(prompt, "_show_paged", paged.append)
    prompt.onecmd_plus_hooks("help")
    assert len(paged) == 1


def test_output_goes_to_files_and_pipes(tree: SmallTree) -> None:
    cwd = tree.root.parent
    run = piped("ac -c > first.txt\nvcs | wc -l > lines.txt\nvcs -h >> first.txt\nac | head -n 1\n", cwd)
    first = (cwd / "first.txt").read_text("utf-8")
    assert "━ Verdict ━" in first
    assert "usage: vcs" in first
    assert int((cwd / "lines.txt").read_text("utf-8")) > 3
    assert run.stdout.startswith("result file: ")
    assert run.stdout.count("\n") == 1
    assert run.stderr == ""


def test_a_script(tree: SmallTree) -> None:
    cwd = tree.root.parent
    (cwd / "commands.txt").write_text("vc\nset limit 1\nvcs\n", encoding="utf-8")
    for line in ("run_script commands.txt", "@commands.txt"):
        assert "1 of 2 ops below 0.98 shown" in piped(line + "\n", cwd).stdout


def test_another_data_folder(tree: SmallTree, tmp_path: Path) -> None:
    small_tree(tmp_path / "other run", chain())
    run = piped(f"set data '{tmp_path / 'other run'}'\nac -c\n", tmp_path)
    assert "other run" in run.stdout
    assert result_files(tmp_path / "other run")
    assert not result_files(tree.root)
    for word in ("data", "--data", "precision-tool --data"):
        lines = f"{word} 'other run' vcs -l 1\nset data\n{word} 'other run'\nset data\n{word} elsewhere\n"
        run = piped(lines, tmp_path, code=2)
        assert re.findall("data +(precision_data|other run) +the", run.stdout) == ["precision_data", "other run"]
        assert "no such data folder" in run.stderr
    inside = tmp_path / "parent" / "precision_data"
    shutil.copytree(tmp_path / "other run", inside)
    for word in ("data", "set data"):
        asked = piped(f"{word} parent\nvcs\n{word} 'other run' run ls\n", tmp_path, code=2)
        assert "this looks like one: set data parent/precision_data\n" in asked.stderr
        assert ("not a command that can run on another data folder" in asked.stderr) == (word == "data")


def test_every_knob_is_a_setting_and_is_checked(open_prompt: Open, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = open_prompt()
    for name in KNOBS:
        assert hasattr(prompt.session.settings, name)
        assert name in output(prompt, "set")
    output(prompt, "set threshold 0.5")
    assert prompt.session.settings.threshold == 0.5
    output(prompt, "set threshold 2")
    assert "a number from -1 to 1" in " ".join(capsys.readouterr().err.split())
    assert prompt.session.settings.threshold == 0.5
    output(prompt, "set theme plain")
    assert prompt.session.settings.theme == "plain"
    output(prompt, "set language zh")
    assert language() == "zh"
    output(prompt, "set language ''")
    assert prompt.session.settings.language == ""
    output(prompt, "set width 60")
    assert max(map(len, output(prompt, "help").splitlines())) <= 60


def test_a_threshold_that_was_set_is_the_default_of_the_next_command(open_prompt: Open) -> None:
    prompt = open_prompt()
    output(prompt, "vc")
    assert "below 0.98" in output(prompt, "vcs")
    output(prompt, "set threshold -1")
    assert "No op is below a cosine of -1" in output(prompt, "vcs")


def test_our_own_errors_go_to_the_log(
    open_prompt: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = open_prompt()
    start_log("warning", prompt.session.workspace.output_dir)

    def broken(*_: object) -> int:
        raise ZeroDivisionError("by \x1b[31mzero")

    monkeypatch.setattr(module, "load_command", lambda _: broken)
    output(prompt, "vcs")
    start_log("off", prompt.session.workspace.output_dir)
    error = capsys.readouterr().err
    assert "internal error (ZeroDivisionError: by \\x1b[31mzero); please report it with " in " ".join(error.split())
    assert "Traceback" in (prompt.session.workspace.root / "temp" / LOG_NAME).read_text("utf-8")
    assert prompt.failed == 3


def test_what_was_run_is_in_the_log_when_asked_for(tree: SmallTree) -> None:
    log = tree.root / "temp" / LOG_NAME
    piped("vc\n", tree.root.parent)
    assert not log.exists()
    piped("vc\n", tree.root.parent, "--log-level", "info")
    assert re.search(r"INFO .*: vc: 0 in \d+\.\d\d s$", log.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("set threshold 2", 2), ("set width 5", 2), ("set nosuch 1", 2), ("ls 'x", 2),
        ("run_script nofile", 2), ("help bogus", 2), ("history 99", 2), ("history /[/", 2),
        ("history x..y", 2), ("cd /", 2), ("ni", 2), ("vcs -h", 0), ("set limit 4", 0),
    ],
)  # fmt: skip
def test_every_kind_of_failure_has_its_exit_code(open_prompt: Open, line: str, code: int) -> None:
    prompt = open_prompt()
    output(prompt, line)
    assert prompt.failed == code


@pytest.mark.parametrize(
    ("line", "code"), [("false", 1), ("!false", 1), ("run false", 1), ("!kill -9 $$", 137), ("!true", 0)]
)
def test_a_failed_shell_command_counts(tree: SmallTree, line: str, code: int) -> None:
    piped(f"{line}\necho on\n", tree.root.parent, code=code)


def test_lines_that_only_a_shell_understands_are_given_to_it(tree: SmallTree) -> None:
    run = piped("FOO=bar sh -c 'echo $FOO'\nfor i in 1 2; do echo n$i; done\n", tree.root.parent)
    assert run.stdout.split() == ["bar", "n1", "n2"]


def test_run_on_the_command_line_keeps_words_together(tmp_path: Path) -> None:
    for name in ("a", "b", "a b"):
        (tmp_path / name).touch()
    tool("run", "rm", "a b", cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a", "b"]
    tool("run", "rm a; rm b", cwd=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    tool("run", "exit 7", cwd=tmp_path, code=7)


def test_notes_show_no_escape_sequences(tree: SmallTree) -> None:
    session = Session(Settings(data=tree.root))
    session.workspace.notes.append("bad \x1b]0;title\x07 name")
    err = io.StringIO()
    tell_notes(session, Output(ReportConsole(), ReportConsole(file=err)))
    assert "\x1b" not in err.getvalue()
    assert "\\x1b]0;title\\x07" in err.getvalue()


def test_ctrl_c_while_a_line_is_written(
    open_prompt: Open, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The signal comes in the middle of sys.stderr.write, which must not be entered a second time then."""

    class Busy(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call")

    prompt = open_prompt()
    monkeypatch.setattr(prompt.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", Busy())
    with pytest.raises(KeyboardInterrupt):
        prompt.sigint_handler(signal.SIGINT, None)
    assert capfd.readouterr().err == "\n"


# --- help ----------------------------------------------------------------------------------------------------------


def test_help_lists_every_command_that_is_shown(open_prompt: Open) -> None:
    prompt = open_prompt()
    listed = re.findall(r"^  ([a-z_0-9]+)  ", output(prompt, "help"), re.MULTILINE)
    assert set(listed) | {"quit"} == set(prompt.get_visible_commands())
    words = [word.name for word in WORDS if not word.hidden]
    assert [name for name in listed if name in words] == words


def test_every_command_has_help_with_an_example_both_ways(open_prompt: Open) -> None:
    prompt = open_prompt()
    for name in prompt.get_visible_commands():
        help_ = output(prompt, f"help {name}")
        assert help_ == output(prompt, f"{name} -h")
        (example,) = re.findall(r"^example: (.*)$", help_, re.MULTILINE)
        assert example.split()[0] == name
        for option in re.findall(r"(?<!\S)--?[a-z]+", example) if name != "run" else ():
            assert option in help_.replace("\n", " "), f"{name} {option}"


def test_the_help_is_the_parsers_of_the_command_line(open_prompt: Open) -> None:
    prompt = open_prompt()
    for word in WORDS:
        if word.name != "data":
            assert output(prompt, f"help {word.name}") == load_command(word.name).parser(prompt.session).format_help()
            for alias in word.aliases:
                assert output(prompt, f"help {alias}") == output(prompt, f"help {word.name}")


#: Those of others need data that is not the demo's: their own tests run them.
_OTHER_DATA = ("data", "demo", "infer", "run", "h5copy", "profile", "bisect", "preflight", "curves")


@pytest.mark.parametrize("word", [word.name for word in WORDS if not word.plain and word.name not in _OTHER_DATA])
def test_the_example_of_every_command_runs(tmp_path: Path, demo: Path, word: str) -> None:
    """On the demo, as a newcomer would try it."""
    shutil.copytree(demo, tmp_path / "precision_data")
    help_ = tool(word, "-h", cwd=tmp_path, columns=300).out
    (example,) = re.findall(r"^example: (.*)$", help_, re.MULTILINE)
    for line in example.split("; "):
        assert not re.search(r"(?<!\S)/", line), "a place outside of the folder"
        tool(*shlex.split(line), cwd=tmp_path)


# --- Tab -----------------------------------------------------------------------------------------------------------


def test_tab_completes_commands_options_and_names(open_prompt: Open) -> None:
    prompt = open_prompt()
    assert set(offered(prompt, "v")) == {"vc", "vcs"}
    assert "--json" in offered(prompt, "vcs --")
    assert not prompt.complete("--", "vcs --", 4, 6)._add_opening_quote
    ops = [node.name for node in chain()]
    assert offered(prompt, f"ni {ops[-1]}") == (ops[-1],)
    part = ops[-1].replace("/", "_")[1:]
    assert ops[-1] in offered(prompt, f"ni {part}")
    assert {node.type for node in chain()} >= set(offered(prompt, "ls -t "))
    assert offered(prompt, "ls -t ")
    assert set(offered(prompt, "help v")) == {"vc", "vcs"}


def test_tab_completes_metrics_and_layouts(open_prompt: Open) -> None:
    prompt = open_prompt()
    assert offered(prompt, "vc -alg cos") == ("CosineSimilarity",)
    assert offered(prompt, "vc -alg CosineSimilarity,MaxAbs") == ("CosineSimilarity,MaxAbsoluteError",)
    assert set(offered(prompt, "vc -alg ")) == {*METRIC_COLUMNS, "all"}
    assert offered(prompt, "dc x -f nc1") == ("NC1HWC0", "NC1HWC0_C04")
    assert "FRACTAL_Z" in offered(prompt, "dc x -f ")


def test_tab_completes_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate_demo(tmp_path / "precision_data")
    monkeypatch.chdir(tmp_path)
    prompt = Prompt(Session(Settings()), stdin=io.StringIO(), stdout=io.StringIO())
    assert "all-off" in offered(prompt, "fusion a")
    for line in ("fusion off MatMulB", "fusion bisect --passes Nope MatMulB", "ls -f MatMulB"):
        assert offered(prompt, line) == ("MatMulBiasAddFusionPass",)
    assert set(offered(prompt, "gr")) == {"graph2json", "graphs"}


def test_tab_completes_files(open_prompt: Open, tree: SmallTree) -> None:
    prompt = open_prompt()
    golden = next(iter(tree.goldens.values())).name
    assert golden in offered(prompt, f"pt {golden[:-8]}")
    dump = next(iter(tree.dumps.values())).name
    assert dump in offered(prompt, f"pt {dump[:-8]}")
    assert offered(prompt, "vc -lt precision_d") == ("precision_data/",)
    assert offered(prompt, "vc -g ")
    for word in ("data", "--data", "set data"):
        assert offered(prompt, f"{word} precision_d") == ("precision_data/",)
    output(prompt, "vc")
    (result,) = result_files(tree.root / "temp")
    assert offered(prompt, "vcs -f ") == (str(result.relative_to(tree.root.parent)),)


def test_tab_survives_a_folder_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prompt = Prompt(Session(Settings()), stdin=io.StringIO(), stdout=io.StringIO())
    for line in ("ni x", "ls -t ", "ls -f ", "ls -k ", "pt x", "vc -g x", "vcs -f x"):
        assert offered(prompt, line) == ()


def test_a_menu_shows_defaults_not_formats(open_prompt: Open) -> None:
    prompt = open_prompt()
    completions = prompt.complete("-", "vcs -", 4, 5)
    assert completions
    assert not any("%" in item.display_meta for item in completions)


def test_the_prompt_raises_what_tab_must_not() -> None:
    """Names that cannot be read are an error of the command, never of Tab."""
    with pytest.raises(DataNotFoundError):
        Session(Settings(data=Path("nowhere"))).find_ops("x")
    assert Session(Settings(data=Path("nowhere"))).names.op_names() == ()


def test_commands_of_cmd2_that_start_editors_or_python_are_gone(open_prompt: Open) -> None:
    commands = set(open_prompt().get_all_commands())
    assert {"vc", "history", "run_script"} <= commands
    assert not commands & {"py", "ipy", "run_pyscript", "edit"}
    assert issubclass(Prompt, cmd2.Cmd)


def test_names_that_a_shell_would_not_take_for_names_are_quoted(open_prompt: Open, tmp_path: Path) -> None:
    prompt = open_prompt()
    evil = "zzx|touch${IFS}pwned.npy"
    (tmp_path / evil).touch()
    completions = prompt.complete("zz", "pt zz", 3, 5)
    assert completions.to_strings() == (evil,)
    assert (completions._add_opening_quote, completions._quote_char) == (True, "'")
    output(prompt, f"pt '{evil}'")
    assert not (tmp_path / "pwned.npy").exists()
    assert offered(prompt, "pt 'zz") == (evil,)


@pytest.mark.parametrize(("name", "quote"), [("it's", '"'), ('a"b', "'"), ("a>b", "'"), ("a b", "'"), ("a#b", "'")])
def test_the_quote_fits_the_name(name: str, quote: str) -> None:
    completions = quoted(cmd2.Completions.from_values([name]), " ")
    assert completions.to_strings() == (name,)
    assert (completions._add_opening_quote, completions._quote_char) == (True, quote)


@pytest.mark.parametrize("name", ['it\'s "both"', "it's $(x)", "it's `x`", "new\nline", "esc\x1b[31m"])
def test_names_that_no_quotes_can_hold_are_not_offered(name: str) -> None:
    assert quoted(cmd2.Completions.from_values([name]), " ").to_strings() == ()


def test_plain_names_stay_as_they_are(open_prompt: Open) -> None:
    completions = open_prompt().complete("mid", "ni mid", 3, 6)
    assert completions.to_strings() == ("middle/Mul",)
    assert not completions._add_opening_quote


def test_names_are_put_together_once(open_prompt: Open) -> None:
    prompt = open_prompt()
    time.sleep(0.2)  # files as new as these may change again without a new time stamp, and are not relied on
    assert prompt._offers._tensor_names(prompt.session) is prompt._offers._tensor_names(prompt.session)


def test_cmd2_still_has_what_is_used_of_its_inner_parts() -> None:
    for name in ("_raise_keyboard_interrupt", "do__eof", "do_history", "do_shell", "do_help", "tokens_for_completion"):
        assert callable(getattr(cmd2.Cmd, name))
    fields = {field.name for field in dataclasses.fields(cmd2.Completions)}
    assert {"_add_opening_quote", "_quote_char", "items"} <= fields


@pytest.mark.parametrize("line", ["!echo a\0", "ls > a\0b", "ls a\0b", "pt a\0b", "data a\0b", "@a\0b", "echo a\0b"])
def test_a_line_with_a_zero_byte(tree: SmallTree, line: str) -> None:
    run = piped(f"{line}\n", tree.root.parent, code=2)
    assert "the line contains a zero byte" in run.stderr


def test_ctrl_c_is_heard_while_what_the_line_editor_left_is_collected() -> None:
    class Finalized:
        """Is pressed on when it is collected, as an event loop may be."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    gc.disable()
    try:
        Finalized()
        with pytest.raises(KeyboardInterrupt):
            collect_garbage()
    finally:
        gc.enable()


def test_options_are_offered_as_the_help_has_them_the_everyday_ones_first(open_prompt: Open) -> None:
    options = offered(open_prompt(), "ac -")
    everyday, others = ("-c", "-lt", "-l", "--json", "-v", "--all"), ("--engine", "--workers", "--csv")
    assert options[0] == "-c"
    assert max(map(options.index, everyday)) < min(map(options.index, others))
    assert options[-1] == "-h"


def test_the_help_of_a_command_is_that_of_its_parser(open_prompt: Open) -> None:
    assert output(open_prompt(), "help ac").startswith("usage: ac ")


# What Tab offers.

NAMES = Names(("Conv2D", "conv1/Conv2D", "conv1/bias", "gradients/conv1/BiasAddGrad", "trans_Cast_0"))


def test_what_starts_with_the_text_comes_alone() -> None:
    assert NAMES.offers("conv1/") == ["conv1/Conv2D", "conv1/bias"]


def test_any_part_where_nothing_starts_with_it() -> None:
    assert NAMES.offers("BiasAdd") == ["gradients/conv1/BiasAddGrad"]


def test_slashes_underscores_and_case_do_not_matter() -> None:
    assert NAMES.offers("CONV1_b") == ["conv1/bias"]
    assert NAMES.offers("trans/cast") == ["trans_Cast_0"]


def test_nothing_and_everything() -> None:
    assert NAMES.offers("nothing like it") == []
    assert NAMES.offers("") == list(NAMES.names)


def shared(names: list[str]) -> str:
    """What all names start with."""
    length = min(map(len, names))
    return next((names[0][:size] for size in range(length, 0, -1) if len({name[:size] for name in names}) == 1), "")


@given(st.lists(st.text("ab/_", min_size=1, max_size=6), unique=True), st.text("ab/_", max_size=3), st.integers(2, 5))
def test_too_many_offers_have_in_common_what_all_matches_have(names: list[str], text: str, limit: int) -> None:
    """Otherwise Tab would type a part that only the first ones have."""
    flat = [name.replace("/", "_") for name in names]
    starting = sorted(name for name, plain in zip(names, flat, strict=True) if plain.startswith(text.replace("/", "_")))
    offered = Names(sorted(names)).offers(text, limit)
    assert len(offered) <= limit
    if starting:
        assert shared(offered) == shared(starting)
        assert set(offered) <= set(starting)
        assert len(offered) == min(limit, len(starting))
