"""The command line before a command gets it: ways to start, global options, errors and exit codes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import tool
from small_tree import chain, small_tree

from precision_tool import __version__
from precision_tool.cli import STOPPED, main
from precision_tool.lib.cli.ascii_signs import SIGNS
from precision_tool.lib.cli.words import WORDS, Word
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.messages import errors
from precision_tool.lib.messages.catalogue import catalogue

REPO = Path(__file__).resolve().parents[1]
CLI = REPO / "precision_tool" / "cli.py"

AppRun = Callable[[str, list[str], Settings], int]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in an empty folder, and its temporary files stay below it."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return folder


@pytest.fixture
def use_app(monkeypatch: pytest.MonkeyPatch) -> Callable[[AppRun], None]:
    """Puts a function in the place of `lib.app.run`."""

    def use(run: AppRun) -> None:
        app = types.ModuleType("precision_tool.lib.cli.app")
        app.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "precision_tool.lib.cli.app", app)
        monkeypatch.setattr("precision_tool.lib.cli.app", app, raising=False)

    return use


def start(*arguments: str, options: tuple[str, ...] = (), cli: Path = CLI) -> subprocess.CompletedProcess[str]:
    """Starts cli.py as a script with nothing installed: no site-packages, no PYTHONPATH."""
    command = [sys.executable, "-S", "-E", "-B", *options, str(cli), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_as_a_script_needs_nothing_installed(option: str) -> None:
    run = start(option)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("usage: precision-tool")
    assert re.search("^  vcs  +list the ops below", run.stdout, re.MULTILINE)
    assert not re.search("^  (data|run|graph|npu_overflow|vector_compare) ", run.stdout, re.MULTILINE)  # old words


def test_help_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    for module in ("precision_tool", "precision_tool.cli"):
        run = subprocess.run(
            [sys.executable, "-W", "error", "-m", module, "-h"], capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stderr) == (0, ""), module
        assert run.stdout == start("-h").stdout


def test_help_fits_a_terminal_of_80_columns() -> None:
    assert max(map(len, start("-h").stdout.splitlines()[1:])) <= 80


def test_version() -> None:
    run = start("--version")
    assert (run.returncode, run.stdout) == (0, f"precision-tool {__version__}\n")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv[0] = 'x'; from precision_tool.cli import main; main(['-h']); "
        "heavy = {'numpy', 'ml_dtypes', 'rich', 'cmd2', 'argparse', 'dataclasses'} & set(sys.modules); "
        "sys.exit(', '.join(heavy) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("word", [word for word in WORDS if not word.makes_data and word.name != "data"])
def test_every_command_says_that_the_data_folder_is_not_there(word: Word, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    for arguments in (["--data", "none", word.name], ["data", "none", word.name, "x"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.splitlines()[0] == "error: none: no such data folder"
    assert main(["--data", "file", word.name]) == 2
    assert capsys.readouterr().err.startswith("error: file: a file where the data folder should be")
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_the_prompt_says_that_the_data_folder_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", "none"]) == 2
    assert "none: no such data folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["ac"], ["vcs"], ["graphs", "--find", "x"], ["fusion", "bisect", "--check", "true"]]
)
def test_without_a_data_folder_there_is_nothing_to_look_at(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "precision_data: no such data folder" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "data"), [([], "precision_data"), (["--data", "d"], "d"), (["data", "d"], "d")])
def test_without_a_command_it_is_the_prompt(
    monkeypatch: pytest.MonkeyPatch, use_app: Callable[[AppRun], None], arguments: list[str], data: str
) -> None:
    opened = []
    Path("d").mkdir()

    def start_prompt(settings: Settings) -> int:
        opened.append(settings.data)
        return 7

    use_app(lambda *_: 0)
    monkeypatch.setattr("precision_tool.lib.cli.app.start_prompt", start_prompt, raising=False)
    assert main(arguments) == 7
    assert opened == [Path(data)]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["vcss"], "unknown command 'vcss'", "did you mean vcs"),
        (["vector_compar"], "unknown command 'vector_compar'", "did you mean vector_compare"),
        (["plan"], "unknown command 'plan'", "-h lists the commands"),
        (["AC"], "unknown command 'AC'", "did you mean ac?"),
        (["?"], "unknown command '?'", "lists the commands"),
        (["--dat", "x", "ac"], "unknown option --dat", "precision-tool -h"),
        (["--data"], "option --data needs a folder", "--data precision_data"),
        (["--log-level"], "option --log-level needs a level", "--log-level info"),
        (["--log-level", "loud", "ac"], "option --log-level: must be 'debug' or", "config/config.py explains"),
        (["--data=", "ac"], "option --data: must be a folder", "config/config.py explains"),
        (["data"], "data: which folder?", "data DIR"),
        (["data", "-c"], "data: which folder?", "data DIR"),
    ],
)
def test_wrong_use_says_what_and_what_to_do(arguments: list[str], message: str, hint: str) -> None:
    run = start(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    first, second = run.stderr.splitlines()
    assert first.startswith(f"error: {message}")
    assert second.startswith("hint: ")
    assert hint in second


def test_the_help_of_data_is_its_own() -> None:
    run = start("data", "-h")
    assert (run.returncode, run.stdout.partition("\n")[0]) == (0, "usage: precision-tool data DIR [COMMAND ...]")


@pytest.mark.parametrize("python_options", [(), ("-P",)], ids=["plain", "safe path"])
def test_a_copied_package_has_one_identity_of_every_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_options: tuple[str, ...]
) -> None:
    copy = tmp_path / "anywhere" / "precision_tool"
    shutil.copytree(CLI.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "lib" / "cli" / "app.py").write_text(
        "import sys, importlib.util, os\n"
        "from precision_tool.lib.messages.errors import UsageError\n"
        "def run(word, argv, settings):\n"
        "    print(word, argv, settings.data)\n"
        "    print(importlib.util.find_spec('lib'), importlib.util.find_spec('tf_config'))\n"
        "    print(os.path.dirname(sys.modules['precision_tool'].__file__))\n"
        "    raise UsageError('caught once')\n"
    )
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    for cli in (copy / "cli.py", Path("../anywhere/precision_tool/cli.py")):
        run = start("vc", "--data", "x", "-lt", "a", cli=cli, options=python_options)
        expected = f"vc ['--data', 'x', '-lt', 'a'] precision_data\nNone None\n{copy}\n"
        assert (run.returncode, run.stdout, run.stderr) == (2, expected, "error: caught once\n")
    assert list(other.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "word", "rest", "data", "work"),
    [
        (["ac", "-c"], "ac", ["-c"], "precision_data", None),
        (["vector_compare", "-h"], "vc", ["-h"], "precision_data", None),
        (["--data", "d", "--work=w", "vcs"], "vcs", [], "d", "w"),
        (["data", "d", "ac", "-c"], "ac", ["-c"], "d", None),
        (["--work", "w", "data", "d", "--data", "e", "vc", "data"], "vc", ["data"], "e", "w"),
    ],
)
def test_the_command_gets_its_words_and_the_settings(
    use_app: Callable[[AppRun], None],
    arguments: list[str],
    word: str,
    rest: list[str],
    data: str,
    work: str | None,
) -> None:
    calls = []
    for folder in "de":
        Path(folder).mkdir()

    def run(*call: object) -> int:
        calls.append(call)
        return 1

    use_app(run)
    assert main(arguments) == 1
    settings = calls[0][2]
    assert isinstance(settings, Settings)
    assert calls[0][:2] == (word, rest)
    assert settings.data == Path(data)
    assert settings.work == (Path(work) if work else None)


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (errors.UsageError("wrong", "do it so"), 2, ["error: wrong", "hint: do it so"]),
        (errors.DataNotFoundError("no such entry"), 2, ["error: no such entry"]),
        (errors.OutputError("disk full", "use --work DIR"), 2, ["error: disk full", "hint: use --work DIR"]),
        (KeyboardInterrupt(), 130, ["stopped"]),
        (SystemExit(2), 2, []),
        (SystemExit(None), 0, []),
        (
            ModuleNotFoundError("No module named 'rich'", name="rich"),
            2,
            [
                "error: the Python package rich is not installed",
                "hint: pip install numpy ml_dtypes rich cmd2 prompt_toolkit graphviz jinja2 shtab",
            ],
        ),
    ],
)
def test_errors_become_messages_and_exit_codes(
    use_app: Callable[[AppRun], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    lines: list[str],
) -> None:
    def run(word: str, argv: list[str], settings: Settings) -> int:
        raise error

    use_app(run)
    assert main(["ac"]) == code
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", lines)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by zero"), BrokenPipeError("a worker"), ModuleNotFoundError("x", name="x")]
)
def test_an_internal_error_is_one_line_and_a_log(
    use_app: Callable[[AppRun], None],
    capsys: pytest.CaptureFixture[str],
    empty_folder: Path,
    error: Exception,
) -> None:
    def run(word: str, argv: list[str], settings: Settings) -> int:
        raise error

    use_app(run)
    assert main(["ac", "-c"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    start, _, log = line.partition("; please report it with ")
    assert start == f"error: internal error ({type(error).__name__}: {error})"
    text = Path(log).read_text("utf-8")
    assert f"precision-tool {__version__}, Python {sys.version}" in text
    assert "arguments: ['ac', '-c']" in text
    assert "Traceback" in text
    assert list(empty_folder.iterdir()) == []


def test_an_internal_error_holds_nothing_secret(
    use_app: Callable[[AppRun], None], capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    def run(word: str, argv: list[str], settings: Settings) -> int:
        raise ZeroDivisionError("s3://me:p@ssword@bucket: by zero")

    use_app(run)
    assert main(["vc", "-lt", "s3://me:p@ssword@bucket/run", "-rt", "http://host/run?sig=token"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    text = Path(line.partition("; please report it with ")[2]).read_text("utf-8")
    assert "arguments: ['vc', '-lt', 's3://bucket/run', '-rt', 'http://host/run']" in text
    assert "ssword" not in line + text
    assert "token" not in text


def test_an_internal_error_shows_its_traceback_when_debugging(
    use_app: Callable[[AppRun], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(word: str, argv: list[str], settings: Settings) -> int:
        raise ZeroDivisionError("by zero")

    use_app(run)
    monkeypatch.setenv("PRECISION_TOOL_DEBUG", "1")
    assert main(["ac"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("error: internal error (ZeroDivisionError: by zero); please report it\n")


@pytest.mark.parametrize("lines", [1, 100_000], ids=["found when flushed", "found while printing"])
def test_a_reader_that_stops_reading_is_no_error(lines: int) -> None:
    code = (
        "import sys, types, precision_tool.lib as lib\n"
        "from precision_tool.cli import main\n"
        "app = types.ModuleType('precision_tool.lib.cli.app')\n"
        f"app.run = lambda *call: print('line\\n' * {lines}) or 0\n"
        "lib.app = sys.modules['precision_tool.lib.cli.app'] = app\n"
        "sys.stdin.read()\n"  # until the reader has gone
        "sys.exit(main(['ac']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_ctrl_c_while_a_class_is_made_is_no_internal_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Python 3.12 whatever `__set_name__` raises comes as the cause of a RuntimeError."""

    def stopped(arguments: list[str]) -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("precision_tool.cli._run", stopped)
    assert main([]) == STOPPED
    assert capsys.readouterr().err == "stopped\n"


def test_a_language_that_is_asked_for_is_written_in_an_ascii_locale_too(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", chain())
    shown = tool("--lang", "zh", "ac", "-c", cwd=tmp_path, env={"LC_ALL": "C"}).out
    assert "标杆" in shown
    assert "\\u" not in shown


def test_every_sign_of_the_english_texts_has_one_in_ascii() -> None:
    signs = {sign for text in catalogue("en").values() for sign in text if not sign.isascii()}
    assert [sign for sign in signs if b"\\u" in sign.encode("ascii", SIGNS)] == []


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LANG": "POSIX"}])
def test_an_ascii_locale_gets_ascii(tmp_path: Path, locale: dict[str, str]) -> None:
    """Python would write UTF-8 there all the same."""
    wide = chain()[0].name
    tree = small_tree(tmp_path / "precision_data", chain())
    tool("vc", cwd=tmp_path)
    for words in (["vcs"], ["ls"], ["ni", wide], ["-h"], ["no\u00e9"]):
        run = tool(*words, cwd=tree.root.parent, env=locale, code=None)
        assert (run.out + run.err).isascii(), words
    assert "no\\u00e9" in run.err
    assert not tool("vcs", cwd=tmp_path, env={"LC_ALL": "C.UTF-8"}).out.isascii()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--lang", "zh", "nosuch"], "未知的命令"), (["--lang", "zh", "--nosuch"], "未知的选项")],
)
def test_an_error_before_the_settings_are_read_speaks_the_language(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(arguments) == 2
    assert text in capsys.readouterr().err
    assert main(arguments[2:]) == 2
    assert text not in capsys.readouterr().err
