"""Start here: the command line. Runs as `precision-tool`, `python -m precision_tool` and as a script.

Reads the options before the command, hands the command to `lib/cli/app.py` and turns errors into messages and exit
codes: 0 done, 1 findings (with `--fail`), 2 the user's error, 3 ours, 130 stopped. Loads nothing that the command
does not need. This module runs on Python 3.7, so that training environments get clear answers.
"""

import errno
import glob
import os
import re
import select
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional, Sequence, TextIO, Tuple, Union

if TYPE_CHECKING:
    from precision_tool.lib.cli.words import Word
    from precision_tool.lib.messages import Message

DONE, USER_ERROR, INTERNAL_ERROR, STOPPED = 0, 2, 3, 130
#: What shells report for a program that its reader stopped listening to.
READER_GONE = 128 + 13
#: What writing fails with for want of space.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

USAGE = """\
precision-tool [--data DIR ...] [--work DIR] [--lang en|zh]
               [--log-level LEVEL] [COMMAND ...]"""
#: The rest of the help that is about no command; how wide the help is.
_ABOUT = (
    "Compares a network's run on an Ascend NPU with its benchmark and finds the faulty operator. Without a command it "
    "starts the prompt, which has the same commands and completes names with Tab."
)
OPTIONS = {
    "--data DIR": "the data folder (default ./precision_data)",
    "--work DIR": "where results are written (default: its temp/)",
    "--lang en|zh": "the language (default: that of the locale)",
    "--log-level LEVEL": "what the log there keeps: debug, info, ... off",
    "-h, --help": "this help; after a command, its arguments and an example",
    "--man": "the manual page; in a pipe its source",
    "--version": "the version",
}
_EXIT_CODES = (
    "exit codes: 0 done, 1 findings (with --fail), 2 wrong use or bad data, 3 internal error, "
    "130 stopped (143 by SIGTERM, 129 by SIGHUP)"
)
_WIDTH = 79
#: Seconds within which one more Ctrl+C is the same wish, and after which a signal that was lost comes again.
_SAME_WISH, _AGAIN = 0.5, 0.01

#: The oldest Python that analyses, the prompt included.
MIN_PYTHON = (3, 11)

#: What every command needs. Someone who merely copied the package may lack them.
DEPENDENCIES = ("numpy", "ml_dtypes", "rich", "cmd2", "prompt_toolkit", "graphviz", "jinja2", "shtab")

#: Set to 1, internal errors print their traceback instead of saving it.
DEBUG_VARIABLE = "PRECISION_TOOL_DEBUG"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    if argv is not None:
        return _main(list(argv), is_process=False)
    try:
        _hear_signals()
        return _main(sys.argv[1:], is_process=True)
    except KeyboardInterrupt:  # one more, while the first is answered
        return _stopped(is_process=True)


def _hear_signals() -> None:
    """Make several presses of Ctrl+C one, and lose no signal that ends a command: what Python cannot raise comes again.

    It would print a traceback instead, and the command would go on.
    """
    heard = [-_SAME_WISH]
    lost: List[BaseException] = []

    def interrupt(number: int, _: object) -> None:
        now = time.monotonic()
        if now - heard[0] >= _SAME_WISH:
            heard[0] = now
            raise KeyboardInterrupt

    def end(number: int, _: object) -> None:
        heard[0] = time.monotonic()
        raise lost.pop() if lost else KeyboardInterrupt()

    show: Any = getattr(sys, "unraisablehook", None)  # Python 3.8 and newer

    def hear_again(unraisable: Any) -> None:
        if unraisable.exc_type in (KeyboardInterrupt, SystemExit):
            lost[:] = [unraisable.exc_type(*getattr(unraisable.exc_value, "args", ()))]
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            show(unraisable)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it otherwise
        signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGALRM, end)
    sys.unraisablehook = hear_again


def _main(arguments: List[str], *, is_process: bool) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us: there is nobody to tell
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # for as long as we run
    if is_process:
        from precision_tool.lib.cli.ascii_signs import write_ascii_where_asked

        write_ascii_where_asked()
    from precision_tool.lib.messages.errors import PrecisionToolError
    from precision_tool.lib.messages.limits import LimitError, Reserve, limit_error

    reserve = Reserve()
    try:
        code = _run(arguments)
        sys.stdout.flush()  # a reader that has gone shows here at the latest
        return code
    except PrecisionToolError as error:
        reserve.release()
        from precision_tool.lib.data.workspace import without_folder

        limit = None if isinstance(error, LimitError) else limit_error(error)
        # What is said of lost workers has a hint of its own.
        hint = error.hint if limit is None or limit.kind == "limit.worker_lost" else limit.advice
        return _fail(without_folder(error.message), hint, error.exit_code)
    except KeyboardInterrupt:
        return _stopped(is_process)
    except BrokenPipeError:
        if not (_is_gone(sys.stdout) or _is_gone(sys.stderr)):  # a pipe of ours, to a worker say
            return _internal_error(arguments)
        for stream in (sys.stdout, sys.stderr):
            if _is_gone(stream):
                _give_up(stream)
        return READER_GONE
    except ModuleNotFoundError as error:
        if error.name not in DEPENDENCIES:
            return _internal_error(arguments)
        from precision_tool.lib.messages import text

        return _fail(text("screen.cli.no_package", name=error.name), f"pip install {' '.join(DEPENDENCIES)}")
    except OSError as error:
        reserve.release()
        limit = limit_error(error)
        if limit is not None:
            return _fail(limit.message, limit.hint)
        # What names no file is no file of ours: it is the place that standard output goes to.
        if error.errno not in _NO_ROOM or error.filename is not None:
            return _internal_error(arguments)
        _give_up(sys.stdout)
        from precision_tool.lib.messages import text

        return _fail(text("screen.cli.no_output", reason=error.strerror), text("screen.cli.free_space"))
    except Exception as error:
        reserve.release()
        limit = limit_error(error)
        if limit is not None:
            return _fail(limit.message, limit.hint)
        # Ctrl+C while an import makes a class is said by an error about the class.
        is_stopped = isinstance(error.__cause__, KeyboardInterrupt)
        return _stopped(is_process) if is_stopped else _internal_error(arguments)


def _stopped(is_process: bool) -> int:
    """Says so; in a process of our own one more Ctrl+C changes nothing."""
    if is_process:
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
    from precision_tool.lib.cli.arguments import print_line
    from precision_tool.lib.messages import text

    print_line(text("screen.cli.stopped"), sys.stderr)
    return STOPPED


def _run(arguments: List[str]) -> int:
    from precision_tool.lib.messages.errors import UsageError
    from precision_tool.lib.messages.language import choose_language

    choose_language("")
    options: Dict[str, Any] = {}
    while True:
        rest = _take_global_options(arguments, options)
        if rest is None:
            return DONE
        if not rest:
            return _start_prompt(options)
        name, arguments = rest[0], rest[1:]
        if name == "help" and arguments and not arguments[0].startswith("-"):
            name, arguments = arguments[0], ["-h"]
        if name == "--man":
            return _show_manual(options)
        if name == "help":
            print(_help())
            return DONE
        word = _word_of(name)
        if word.name == "data" and arguments[:1] in (["-h"], ["--help"]):
            from precision_tool.lib.messages.help_texts import help_text

            print(f"{help_text('usage: ')}precision-tool {word.name} {word.arguments}\n\n{help_text(word.help)}")
            return DONE
        if word.name != "data":
            return _run_word(word, arguments, options)
        if not arguments or arguments[0].startswith("-"):
            raise UsageError("top.which_folder", arguments=word.arguments)
        options["data"], arguments = arguments[0], arguments[1:]
        options.pop("more_data", None)


def _word_of(name: str) -> "Word":
    """Return the word of this name; UsageError for one of the prompt, or one that is not there."""
    from precision_tool.lib.cli.words import PROMPT_WORDS, WORDS, close_words, find_word
    from precision_tool.lib.messages.errors import UsageError

    word = find_word(name)
    if word is not None:
        return word
    if find_word(name, PROMPT_WORDS):
        raise UsageError("top.prompt_only", name=name)
    names = [text for word in WORDS for text in (word.name, *word.aliases)]
    raise UsageError("top.unknown_command", name=repr(name), close=close_words(name, names))


def _run_word(word: "Word", arguments: List[str], options: Dict[str, Any]) -> int:
    from precision_tool.lib.messages.errors import UsageError

    if sys.version_info[:2] < word.min_python:
        return _too_old(word.name, word.min_python)
    if "more_data" in options and not word.many_folders:
        raise UsageError("top.one_folder", command=word.name)
    settings = _settings(options)
    if "data" in options and not word.makes_data and not {"-h", "--help"} & set(arguments):
        _check_data(settings, is_analysis=not word.plain)
    try:
        if word.plain:
            from precision_tool.lib.io.files import check_local

            check_local(settings.data)
            code: int = word.load().main(arguments, settings)
            return code
        from precision_tool.lib.cli import app

        return app.run(word.name, arguments, settings)
    except SystemExit as stop:  # argparse, after the help or a usage error
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or DONE
        raise


def _start_prompt(options: Dict[str, Any]) -> int:
    if sys.version_info[:2] < MIN_PYTHON:
        from precision_tool.lib.messages import Message

        return _too_old(Message("screen.cli.the_prompt"), MIN_PYTHON)
    settings = _settings(options)
    if "data" in options:
        _check_data(settings, is_analysis=True)
    from precision_tool.lib.cli import app

    return app.start_prompt(settings)


def _show_manual(options: Dict[str, Any]) -> int:
    if sys.version_info[:2] < MIN_PYTHON:
        return _too_old("--man", MIN_PYTHON)
    from precision_tool.lib.cli import app
    from precision_tool.lib.messages.help_texts import help_text

    settings = _settings(options)
    about, exit_codes = help_text(_ABOUT), help_text(_EXIT_CODES)
    return app.show_manual(
        settings, USAGE, about, {option: help_text(what) for option, what in OPTIONS.items()}, exit_codes
    )


def _check_data(settings: Any, *, is_analysis: bool) -> None:
    """Raises the error for a data folder that is none; URLs are for the analysis only."""
    from precision_tool.lib.data.workspace import check_data
    from precision_tool.lib.io.urls import is_remote

    if is_analysis or not is_remote(settings.data):  # a command of the training side says that it needs a folder
        check_data(settings.data)


def _settings(options: Dict[str, Any]) -> Any:
    """The settings in force, and the language they name in use; what their files ask for without effect is told."""
    from precision_tool.lib.cli.arguments import print_line
    from precision_tool.lib.cli.ascii_signs import write_utf_8_for
    from precision_tool.lib.data.settings import load_settings
    from precision_tool.lib.messages import Message, text
    from precision_tool.lib.messages.language import choose_language

    notes: List[Message] = []
    settings = load_settings(options, notes=notes)
    choose_language(settings.language)
    write_utf_8_for(settings.language)
    for note in notes:
        print_line(text("screen.cli.note", text=note), sys.stderr)
    return settings


def _too_old(what: Union[str, "Message"], needed: Tuple[int, ...]) -> int:
    from precision_tool.lib.messages import text

    running, needs = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, needed))
    return _fail(text("screen.cli.too_old", what=what, needs=needs, running=running))


def _take_global_options(arguments: List[str], options: Dict[str, Any]) -> Optional[List[str]]:
    """Read options up to the command into `options`; the rest, or None when the command line is done with."""
    from precision_tool.lib.cli.words import GLOBAL_OPTIONS
    from precision_tool.lib.messages import LANGUAGES
    from precision_tool.lib.messages.errors import UsageError
    from precision_tool.lib.messages.language import choose_language
    from precision_tool.lib.version import __version__

    rest = list(arguments)
    folders: List[str] = []
    while rest and rest[0].startswith("-"):
        option, has_value, value = rest.pop(0).partition("=")
        if option in ("-h", "--help"):
            print(_help())
            return None
        if option == "--version":
            print(f"precision-tool {__version__}")
            return None
        if option == "--man":
            return [option, *rest]
        if option not in GLOBAL_OPTIONS:
            raise UsageError("top.unknown_option", option=option)
        if not has_value:
            if not rest:
                raise UsageError("top.option_value", option=option, needs=option.strip("-").replace("-", "_"))
            value = rest.pop(0)
        if option == "--data":
            folders += _matching(value)
        elif option == "--lang":
            options["language"] = value
            choose_language(value if value in LANGUAGES else "")  # for errors before the settings are read
        else:
            options[option[2:].replace("-", "_")] = value
    if folders:
        options["data"] = folders[0]
        options.pop("more_data", None)
        if folders[1:]:
            folders = [_data_in(folder) for folder in folders]
            options["data"] = folders[0]
            options["more_data"] = folders[1:]
    return rest


def _matching(pattern: str) -> List[str]:
    """The folders that a pattern means, in the order of the numbers in their names; any other name is a folder's."""
    if not glob.has_magic(pattern) or "://" in pattern or os.path.lexists(pattern):
        return [pattern]
    folders = sorted(filter(os.path.isdir, glob.glob(pattern)), key=_natural)
    if not folders:
        from precision_tool.lib.messages.errors import DataNotFoundError

        raise DataNotFoundError("top.no_match", pattern=pattern)
    return folders


def _data_in(folder: str) -> str:
    """Of several folders each may be a data folder, or a server's that holds one called precision_data."""
    inner = os.path.join(folder, "precision_data")
    is_server = os.path.isdir(os.path.join(inner, "npu")) and not os.path.isdir(os.path.join(folder, "npu"))
    return inner if is_server else folder


def _natural(path: str) -> List[Tuple[bool, int, str]]:
    """What orders server-2 before server-10."""
    parts = re.split("([0-9]+)", path)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _help() -> str:
    from precision_tool.lib.cli.words import LISTED
    from precision_tool.lib.cli.wrapping import cells, wrapped
    from precision_tool.lib.messages.help_texts import help_text

    width = max(len(word.name) for words in LISTED.values() for word in words) + 2
    margin = " " * (width + 2)
    lines = [
        help_text("usage: ") + USAGE.replace("\n", "\n" + " " * cells(help_text("usage: "))),
        "",
        *wrapped(help_text(_ABOUT), _WIDTH),
    ]
    for family, words in LISTED.items():
        lines += ["", help_text(family.lower() + ":")]
        for word in words:
            text = wrapped(help_text(word.help), _WIDTH - len(margin))
            lines += [f"  {word.name:{width}}{text[0]}", *(margin + line for line in text[1:])]
    width = 20
    lines += [
        "",
        help_text("options:"),
        *(f"  {option:{width}}  {help_text(what)}" for option, what in OPTIONS.items()),
        "",
        *wrapped(help_text(_EXIT_CODES), _WIDTH),
    ]
    return "\n".join(lines)


def _fail(message: str, hint: str = "", code: int = USER_ERROR) -> int:
    from precision_tool.lib.cli.arguments import print_line
    from precision_tool.lib.messages import text

    lines = [text("screen.cli.error", text=message), *([text("screen.cli.hint", text=hint)] if hint else [])]
    for line in lines:
        print_line(line, sys.stderr)  # names of files may hold what terminals take for commands
    return code


def _is_gone(stream: TextIO) -> bool:
    """Whether `stream` is a pipe that nobody reads any more."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # replaced by something that is no file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _give_up(stream: TextIO) -> None:
    """What is still to be written to `stream` goes nowhere. Python flushes at exit, and would complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _internal_error(arguments: List[str]) -> int:
    """Keep the traceback of the exception being handled for a report, and say so in one line."""
    import tempfile

    from precision_tool.lib.io.urls import scrubbed
    from precision_tool.lib.messages import text
    from precision_tool.lib.version import __version__

    error = sys.exc_info()[1]
    summary = scrubbed(f"{type(error).__name__}: {error}")
    if os.environ.get(DEBUG_VARIABLE) == "1":
        sys.stderr.write(scrubbed(traceback.format_exc()))
        return _fail(text("screen.cli.internal_error", error=summary, log=""), code=INTERNAL_ERROR)
    head = f"precision-tool {__version__}, Python {sys.version}\narguments: {arguments!r}\n\n"
    try:
        # Not in the data folder: whether that can be written may be the very thing that went wrong.
        handle, path = tempfile.mkstemp(prefix="precision_tool_", suffix=".log")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(scrubbed(head + traceback.format_exc()))
    except OSError:
        sys.stderr.write(scrubbed(traceback.format_exc()))
        return _fail(text("screen.cli.internal_error", error=summary, log=""), code=INTERNAL_ERROR)
    return _fail(text("screen.cli.internal_error", error=summary, log=path), code=INTERNAL_ERROR)


def _start_as_script() -> NoReturn:
    """`python3 precision_tool/cli.py`: make the package importable under its one name, then run it from there.

    Python has put the package folder itself on the path, where `lib` would be a second identity of
    `precision_tool.lib`.
    """
    package_folder = os.path.dirname(os.path.realpath(__file__))
    others = [entry for entry in sys.path if os.path.realpath(entry) != package_folder]
    sys.path[:] = [os.path.dirname(package_folder), *others]
    from precision_tool.cli import main as package_main

    sys.exit(package_main())


if __name__ == "__main__":
    _start_as_script()
