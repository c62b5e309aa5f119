"""The prompt: cmd2's shell around the commands, one CommandSet a family; what Tab offers, and what `set` changes."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import FileIO
from math import inf
from pathlib import Path
from typing import Any, ClassVar, TextIO

import cmd2
from cmd2.argparse_completer import ArgparseCompleter
from cmd2.utils import CustomCompletionSettings, Settable
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.renderer import CPR_Support
from rich.console import RenderableType
from rich.text import Text

from precision_tool.lib.cli.arguments import NAME
from precision_tool.lib.cli.command import Output, Parser, load_command
from precision_tool.lib.cli.flags import Completion, completion_of
from precision_tool.lib.cli.help_format import argparse_in_language
from precision_tool.lib.cli.offers import IN_FILES, PLAIN, Offers
from precision_tool.lib.cli.words import (
    DONE,
    FAMILIES,
    INTERNAL_ERROR,
    LISTED,
    PROMPT_WORDS,
    STOPPED,
    USER_ERROR,
    WORDS,
    Word,
    close_words,
    find_word,
)
from precision_tool.lib.io.files import folder_exists, history_file
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.messages.help_texts import help_text
from precision_tool.lib.messages.language import LANGUAGES, choose_language
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import THEMES, ReportConsole, banner, command_list
from precision_tool.lib.view.text import plain, safe, shown_reason

#: Commands of cmd2 that have no place here: they start editors and Python code.
_LEFT_OUT = ("edit", "run_pyscript")
#: Commands of cmd2 that few need: they work, the help does not list them.
_HIDDEN = ("_relative_run_script", "alias", "macro", "shell", "shortcuts")
#: Words of a shell that do nothing where every line has a shell of its own.
_WITHOUT_EFFECT = ("cd", "export", "source", ".", "umask", "ulimit", "unset")
#: Beginnings of lines that only a shell understands: assignments, paths, groups, loops.
_SHELL_SYNTAX = re.compile(r"\w+=|[~./({]|(?:for|if|while|until|case|time|type|echo|test|\[)$")
#: So many seconds after a command has ended, Ctrl+C at the empty prompt does nothing.
_HURRY = 1.0
_log = logging.getLogger(__name__)
#: Words that the prompt does itself.
_OF_THE_PROMPT = ("data", "run")
#: Examples in the help of what cmd2 brings.
_EXAMPLES = {
    "help": "help vc",
    "set": "set threshold 0.99",
    "history": "history -a",
    "run_script": "run_script commands.txt",
    "quit": "quit",
}


# --- what Tab offers --------------------------------------------------------------------------------------------------


class WordSet(cmd2.CommandSet["Prompt"]):
    """The words of one family as commands of the prompt. The same `Command` runs as on the command line."""

    words: ClassVar[Sequence[Word]] = ()

    def __init__(self, prompt: Prompt) -> None:
        super().__init__()
        self._prompt = prompt

    def parser_of(self, word: str) -> Parser:
        """Return the parser of a word, with the settings in force as defaults."""
        return load_command(word).parser(self._prompt.session)

    def complete_word(self, word: str, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        """Complete the arguments of a word."""
        tokens, _ = self._prompt.tokens_for_completion(line, begidx, endidx)
        parser = self.parser_of(word)
        completer = ArgparseCompleter(_completing(parser), self._prompt)
        return _as_in_the_help(parser, completer.complete(text, line, begidx, endidx, tokens[1:], cmd_set=self))


#: Options, which no quotes make anything else.
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]*")


def quoted(completions: cmd2.Completions, before: str) -> cmd2.Completions:
    """Return the offers, in quotes where one holds more than plain characters; `before` precedes them.

    What no quotes can hold, for this prompt and for a shell behind it, is left out.
    """
    if all(PLAIN.fullmatch(item.text) or _OPTION.fullmatch(item.text) for item in completions):
        return completions
    open_quote = before if before in ("'", '"') else ""
    quote = open_quote or ("'" if not any("'" in item.text for item in completions) else '"')
    forbidden = "'" if quote == "'" else '"$`\\!'
    items = [item for item in completions if item.text.isprintable() and not set(item.text) & set(forbidden)]
    if open_quote:
        return replace(completions, items=items)
    return replace(completions, items=items, _add_opening_quote=bool(items), _quote_char=quote)


def _as_in_the_help(parser: Parser, completions: cmd2.Completions) -> cmd2.Completions:
    """Sort options in the order of the help, everyday ones first and `-h` last; leave other offers as they are."""
    listed = (action for group in parser._action_groups for action in group._group_actions)
    actions = sorted(listed, key=lambda action: "-h" in action.option_strings)
    order = {option: place for place, action in enumerate(actions) for option in action.option_strings}
    if not all(item.text in order for item in completions):
        return completions
    return replace(completions, items=sorted(completions, key=lambda item: order[item.text]), is_sorted=True)


def _completing(parser: Parser) -> cmd2.Cmd2ArgumentParser:
    """Return the arguments of a parser of ours in one that cmd2 completes."""
    completing = cmd2.Cmd2ArgumentParser(prog=parser.prog, add_help=False)
    for action in parser._actions:
        kind = completion_of(action)
        if kind is not None:
            action.set_completer(_offering(kind))  # type: ignore[attr-defined]
        # The menu shows it as it is.
        action.help = help_text(action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        completing._add_action(action)
    return completing


def _offering(kind: Completion) -> Callable[..., cmd2.Completions]:
    """Return the completer of arguments of this kind, which cmd2 calls with the prompt."""

    def offer(prompt: Prompt, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        return prompt.offers(kind, text, line, begidx, endidx)

    return offer


def word_set(family: str, words: Sequence[Word]) -> type[WordSet]:
    """Return the CommandSet of one family: cmd2 finds commands as methods `do_*`."""
    members: dict[str, Any] = {"DEFAULT_CATEGORY": family, "words": words, "__module__": __name__}
    for word in words:
        for name in (word.name, *word.aliases):
            members[f"do_{name}"] = _do(word, name)
            members[f"help_{name}"] = _help(word)
            members[f"complete_{name}"] = _complete(word)
    return type(family.title().replace(" ", "") + "Commands", (WordSet,), members)


def _do(word: Word, name: str) -> Callable[[WordSet, cmd2.Statement], None]:
    def do(self: WordSet, statement: cmd2.Statement) -> None:
        # Quotes are for the shell of the prompt: as there, an argument in quotes is one argument without them.
        self._prompt.run_word(word, [cmd2.string_utils.strip_quotes(text) for text in statement.arg_list])

    do.__name__ = f"do_{name}"  # what cmd2 knows commands by
    do.__doc__ = word.help
    return do


def _help(word: Word) -> Callable[[WordSet], None]:
    def help_(self: WordSet) -> None:
        self._prompt.stdout.write(self.parser_of(word.name).format_help())

    return help_


def _complete(word: Word) -> Callable[..., cmd2.Completions]:
    def complete(self: WordSet, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        return self.complete_word(word.name, text, line, begidx, endidx)

    return complete


# --- what `set` changes -----------------------------------------------------------------------------------------------


#: cmd2's own settings that are worth showing.
KEPT_SETTABLES = ("echo",)


class Knobs:
    """The settings that `set` shows and changes; a change is checked as in any other place."""

    def __init__(self, prompt: Prompt) -> None:
        object.__setattr__(self, "_prompt", prompt)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._prompt.session.settings, name)
        return str(value) if isinstance(value, Path) else value

    def __setattr__(self, name: str, value: object) -> None:
        session = self._prompt.session
        if name == "data":
            try:
                self._prompt.go_to_data(str(value))
            except UsageError as error:  # cmd2 shows no hint of its own accord
                raise ValueError(f"{error.message}; {error.hint}") from None
            return
        session.settings = replace(session.settings, **{name: value})
        choose_language(session.settings.language)


KNOBS = {
    "data": "the data folder",
    "threshold": "cosine similarity below which a tensor counts as wrong",
    "limit": "how many ops are listed",
    "atol": "absolute tolerance of cp",
    "rtol": "relative tolerance of cp",
    "print_count": "how many values of a tensor are shown",
    "workers": "threads or processes that share the work, 0 = one per core",
    "width": "columns of the output, 0 = as wide as the terminal",
    "theme": "colours: dark, light or plain",
    "language": "language of the output: en or zh; empty = that of the locale",
}


def on_or_off(word: str) -> bool:
    """Return a setting that is on or off as a bool."""
    values = {"on": True, "true": True, "off": False, "false": False}
    if word.lower() not in values:
        raise ValueError(text("argument.on_or_off", value=repr(word)))
    return values[word.lower()]


# --- the prompt -------------------------------------------------------------------------------------------------------


#: The commands of the prompt alone: what each does, and an example.
_OWN = {
    "data": ("Go on with another data folder, or run one command on it.", "data /data/run2/precision_data"),
    "refresh": (
        "Read dumps, graphs and results anew. New files are seen by the times of their folders anyway.",
        "refresh",
    ),
    "exit": ("Leave. So do quit, Ctrl+D, and Ctrl+C at an empty prompt.", "exit"),
}


def _own_parser(name: str) -> Parser:
    parser = Parser(name, *_OWN[name])
    if name == "data":
        parser.add_argument("folder", metavar="DIR", help="the data folder")
        parser.add_argument(
            "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="only this command, with arguments"
        )
    return parser


def _put_into_language(parser: cmd2.Cmd2ArgumentParser) -> None:
    """Let the help of a command that cmd2 brings be in the language in use."""
    shown: list[tuple[Any, str]] = [(parser, "description"), *((group, "title") for group in parser._action_groups)]
    for owner, name in (*shown, *((action, "help") for action in parser._actions)):
        if getattr(owner, name):
            setattr(owner, name, help_text(str(getattr(owner, name))))


def _own_help(name: str) -> Callable[[Prompt], None]:
    def help_(self: Prompt) -> None:
        self.stdout.write(_own_parser(name).format_help())

    return help_


def _refuse_zero_bytes(parsed: cmd2.plugin.PostparsingData) -> cmd2.plugin.PostparsingData:
    """Raise UsageError for a zero byte: no program, file or op has one in its name."""
    if "\0" in parsed.statement.raw:
        raise UsageError("cli.zero_byte")
    return parsed


class Prompt(cmd2.Cmd):
    """The `PrecisionTool >` prompt."""

    DEFAULT_CATEGORY = "Prompt"
    DEFAULT_PROMPT = "PrecisionTool > "

    def __init__(
        self, session: Session, history_file: str = "", stdin: TextIO | None = None, stdout: TextIO | None = None
    ) -> None:
        self.session = session
        #: Exit code of the last command that did not end well; commands that came through a pipe report it.
        self.failed = DONE
        self.paging = True
        self._ended_at = -inf
        self._offers = Offers()
        for name in _LEFT_OUT:
            setattr(self, f"do_{name}", None)
        super().__init__(
            stdin=stdin,
            stdout=stdout,
            allow_cli_args=False,
            allow_clipboard=False,
            include_py=False,
            persistent_history_file=history_file,
            persistent_history_length=5000,
            shortcuts={"?": "help", "!": "shell", "@": "run_script"},
            terminators=[],
        )
        self._ask_no_cursor_position()
        self.hidden_commands += [*_HIDDEN, "--data"]
        self.hidden_commands += [name for word in WORDS for name in ((word.name,) if word.hidden else word.aliases)]
        for family, all_words in FAMILIES.items():
            words = [word for word in all_words if word.name not in _OF_THE_PROMPT]
            if words:
                self.register_command_set(word_set(family, words)(self))
        self.register_postparsing_hook(_refuse_zero_bytes)
        out = self.output().out
        if out.no_color or out.is_dumb_terminal:
            self.allow_style = cmd2.rich_utils.AllowStyle.NEVER
        self._choose_settables()
        self._bind_keys()
        for name, example in _EXAMPLES.items():
            parser = self._parser_of_cmd2(name)
            if parser is not None:
                parser.epilog = help_text("example: ") + example
                _put_into_language(parser)

    # --- what the prompt shows ----------------------------------------------------------------------------------------

    def preloop(self) -> None:
        """Greet with the contents of the data folder."""
        if self.stdin.isatty():
            self.output().out.print(banner(self.session.overview()))

    def output(self) -> Output:
        """Return the consoles of a command: where cmd2 sends output now, and standard error."""
        settings = self.session.settings
        out = ReportConsole(file=self.stdout, width=settings.width, theme=settings.theme)
        err = ReportConsole(stderr=True, width=settings.width, theme=settings.theme)
        return Output(out, err, self._show_paged if self._can_page(out) else None, command="")

    def _can_page(self, out: ReportConsole) -> bool:
        is_watched = self.stdin.isatty() and out.is_terminal and not out.is_dumb_terminal and not self.in_script()
        return self.paging and is_watched and shutil.which("less") is not None

    def _show_paged(self, renderable: RenderableType) -> None:
        out = self.output().out
        with out.capture() as capture:
            out.print(renderable)
        text = capture.get()
        if text.count("\n") < out.height:
            self.stdout.write(text)
        else:
            self.ppaged(Text.from_ansi(text), end="\n")

    def format_exception(self, exception: BaseException) -> str:
        """Render an error: message and hint of the user's errors; others go to the log."""
        err = self.output().err
        with err.capture() as capture:
            if isinstance(exception, PrecisionToolError):
                self.failed = exception.exit_code
                reason = safe(shown_reason(exception.message))
                err.print(Text.assemble((text("screen.cli.error", text=""), "bold red"), reason), soft_wrap=True)
                if exception.hint:
                    hint = text("screen.cli.hint", text="")
                    err.print(Text.assemble((hint, "cyan"), safe(exception.hint)), soft_wrap=True)
            else:
                self.failed = INTERNAL_ERROR
                _log.error("internal error", exc_info=exception)
                where = self.log_place()
                summary = safe(f"{type(exception).__name__}: {exception}")
                err.print(
                    Text.assemble(("error: ", "bold red"), f"internal error ({summary}); please report it{where}"),
                    soft_wrap=True,
                )
        return capture.get().rstrip("\n")

    def log_place(self) -> str:
        """Return ` with FILE`, where the log is written to a file."""
        for handler in logging.getLogger("precision_tool").handlers:
            path = getattr(handler, "path", None)
            if path is not None:
                return f" with {path}"
        return ""

    def perror(self, *objects: Any, **options: Any) -> None:
        """Print an error of cmd2, and count it for the exit code."""
        self.failed = USER_ERROR
        super().perror(*objects, **options)

    # --- running ------------------------------------------------------------------------------------------------------

    def onecmd(self, statement: cmd2.Statement | str, *, add_to_history: bool = True) -> bool:
        """Run a line; what cmd2's own commands say of it is in the language in use."""
        with argparse_in_language():
            return super().onecmd(statement, add_to_history=add_to_history)

    def run_word(self, word: Word, arguments: Sequence[str]) -> None:
        """Run a command. What it raises, cmd2 shows through `format_exception`."""
        started = time.monotonic()
        code = DONE
        try:
            collect_garbage()
            # argparse prints its help on sys.stdout, wherever the output of the command goes.
            with contextlib.redirect_stdout(self.stdout):
                code = load_command(word.name)(self.session, arguments, self.output())
        except SystemExit as stop:  # argparse, after the help
            code = stop.code if isinstance(stop.code, int) else DONE
        except BrokenPipeError:  # what the output was piped to has heard enough
            code = DONE
        except KeyboardInterrupt:
            code = STOPPED
            self.output().err.print(text("screen.cli.stopped"))
            raise
        except PrecisionToolError as error:
            code = error.exit_code
            raise
        finally:
            self.last_result = code
            self.failed = code or self.failed
            self.prompt = self._prompt_text()
            self._ended_at = time.monotonic()
            _log.info("%s: %d in %.2f s", shlex.join([word.name, *arguments]), code, time.monotonic() - started)

    def _prompt_text(self) -> str:
        """Return the prompt with the step and the rank in use."""
        places = (("step", self.session.step), ("rank", self.session.rank))
        place = "".join(f"{what} {number} " for what, number in places if number is not None)
        return self.DEFAULT_PROMPT.replace("> ", f"{place}> ") if place else self.DEFAULT_PROMPT

    def default(self, statement: cmd2.Statement) -> None:
        """Run an unknown first word by the shell, after a line that says so."""
        self.history.append(statement)
        name = statement.command
        args = statement.args
        if name == NAME and args and (not args.startswith("-") or args.startswith("--data ")):  # copied from a shell
            self.onecmd(statement.command_and_args.partition(" ")[2])
            return
        if name in _WITHOUT_EFFECT:
            raise UsageError("cli.without_effect", name=name)
        if shutil.which(name) is None and not _SHELL_SYNTAX.match(name):
            raise UsageError("cli.no_program", name=name, near=self._closest(name))
        self.output().err.print(plain(text("screen.cli.run_by_shell", name=name), "dim"))
        self.do_shell(statement.command_and_args)

    def _closest(self, name: str) -> tuple[str, ...]:
        """Return the commands whose names are close to one that does not exist."""
        commands = [command for command in self.get_visible_commands() if self.get_command_func(command)]
        return close_words(name, commands)

    def do_shell(self, statement: cmd2.Statement | str) -> None:
        """Run a command of the operating system."""
        if not isinstance(statement, cmd2.Statement):
            statement = self.statement_parser.parse(f"shell {statement}")
        if statement.arg_list[:1] in ([], ["-h"], ["--help"]):
            self.help_run()
            return
        super().do_shell(statement)
        if isinstance(self.last_result, int) and self.last_result:
            self.failed = self.last_result if self.last_result > 0 else 128 - self.last_result

    def do_run(self, statement: cmd2.Statement) -> None:
        """Run a command of the operating system; `!CMD` is the same."""
        self.do_shell(statement)

    def help_run(self) -> None:
        """Print the help of `run`."""
        self.stdout.write(load_command("run").parser(self.session).format_help())

    help_shell = help_run

    def complete_run(self, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        """Complete programs, then files."""
        tokens, _ = self.tokens_for_completion(line, begidx, endidx)
        complete = self.shell_cmd_complete if len(tokens) == 2 else self.path_complete
        return complete(text, line, begidx, endidx)

    complete_shell = complete_run

    def do_data(self, statement: cmd2.Statement) -> None:
        """Go on with another data folder, or run one command on it."""
        args = self._parse(_own_parser("data"), statement)
        if args is None:
            return
        if not args.command:
            self.go_to_data(args.folder)
            return
        session = self._session_on(args.folder)
        word = find_word(args.command[0])
        if word is None or word.name in _OF_THE_PROMPT:
            raise UsageError("cli.no_command_there", command="data", name=args.command[0])
        before, self.session = self.session, session
        try:
            self.run_word(word, args.command[1:])
        finally:
            self.session = before
            self.prompt = self._prompt_text()

    def go_to_data(self, folder: str) -> None:
        """Go on with another data folder."""
        self._go_on_with(self._session_on(folder))

    def _session_on(self, folder: str) -> Session:
        session = Session(replace(self.session.settings, data=Path(folder), more_data=()))
        try:
            session.data.check_data()
        except DataNotFoundError as error:
            raise UsageError("cli.no_data_folder", reason=error.full_message, near=error.fields["near"]) from None
        return session

    help_data, help_refresh, help_exit = map(_own_help, ("data", "refresh", "exit"))

    def complete_data(self, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        """Complete folders."""
        return self.path_complete(text, line, begidx, endidx, path_filter=folder_exists)

    def do_refresh(self, statement: cmd2.Statement) -> None:
        """Read dumps, graphs and results anew."""
        if self._parse(_own_parser("refresh"), statement) is not None:
            self.session.refresh()
            self._go_on_with(self.session)

    def do_exit(self, statement: cmd2.Statement) -> bool | None:
        """Leave; so do quit, Ctrl+D, and Ctrl+C at an empty prompt."""
        return self._parse(_own_parser("exit"), statement) is not None

    def do_history(self, statement: cmd2.Statement | str) -> None:
        """View, run, save or clear what was typed."""
        if not isinstance(statement, cmd2.Statement):
            statement = self.statement_parser.parse(f"history {statement}")
        try:
            super().do_history(statement)
        except (IndexError, ValueError, re.error) as error:
            raise UsageError("cli.no_history", reason=str(error)) from error

    def help_history(self) -> None:
        """Print the help of `history`."""
        self._print_help_of_cmd2("history")

    def do__eof(self, _: cmd2.Statement | str) -> bool:
        """Leave at the end of input; a terminal gets a line end first."""
        if self.stdin.isatty():
            self.stdout.write("\n")
        return True

    def do_help(self, statement: cmd2.Statement | str) -> None:
        """List the commands, or explain one."""
        if not isinstance(statement, cmd2.Statement):
            statement = self.statement_parser.parse(f"help {statement}")
        if not statement.arg_list:
            families = {**LISTED, "Prompt": PROMPT_WORDS}.items()
            listed = {help_text(name): [(x.name, help_text(x.help)) for x in words] for name, words in families}
            self.output().show(command_list(listed))
            return
        topic = statement.arg_list[0]
        if topic == "--data":  # no option of `help`
            self.help_data()
            return
        if not topic.startswith("-") and self.get_command_func(topic) is None and topic not in self.get_help_topics():
            raise UsageError("cli.no_help", name=topic, near=self._closest(topic))
        super().do_help(statement)

    def help_help(self) -> None:
        """Print the help of `help`."""
        self._print_help_of_cmd2("help")

    def _print_help_of_cmd2(self, name: str) -> None:
        parser = self._parser_of_cmd2(name)
        assert parser is not None
        parser.print_help(self.stdout)

    def complete_help(self, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        """Complete commands."""
        return self.complete_help_command(text, line, begidx, endidx)

    def _parse(self, parser: Parser, statement: cmd2.Statement) -> argparse.Namespace | None:
        """Return the arguments of a command of the prompt itself; None after its help."""
        try:
            with contextlib.redirect_stdout(self.stdout):
                return parser.parse_args([cmd2.string_utils.strip_quotes(text) for text in statement.arg_list])
        except SystemExit:
            return None

    def _go_on_with(self, session: Session) -> None:
        self.session = session
        self.prompt = self._prompt_text()
        self._offers = Offers()
        self.output().out.print(banner(session.overview()))

    def _ask_no_cursor_position(self) -> None:
        """Keep the terminal from being asked for the cursor: a late answer would appear as ^[[1;1R."""
        output = self.main_session.output
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False
            self.main_session.app.renderer.cpr_support = CPR_Support.NOT_SUPPORTED

    def _raise_keyboard_interrupt(self) -> None:
        if self.stdin.isatty():  # the terminal has written ^C; cmd2's empty line would go where the output goes
            with contextlib.suppress(OSError):
                # sys.stderr itself may be in the middle of a write when the signal comes.
                FileIO(2, "w", closefd=False).write(b"\n")
        raise KeyboardInterrupt

    # --- completion ---------------------------------------------------------------------------------------------------

    def complete(
        self, text: str, line: str, begidx: int, endidx: int, custom_settings: CustomCompletionSettings | None = None
    ) -> cmd2.Completions:
        """What Tab offers. Names come from other machines: what a shell would not take for a name goes in quotes."""
        completions = super().complete(text, line, begidx, endidx, custom_settings)
        return completions if custom_settings is not None else quoted(completions, line[:begidx][-1:])

    def offers(self, kind: Completion, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        """Return the names of one kind that hold `text`, those that start with it first; where none does, files."""
        offers = self._offers.of(self.session, kind, text)
        if offers or kind not in IN_FILES:
            return cmd2.Completions.from_values(offers, is_sorted=True)
        return self.path_complete(text, line, begidx, endidx, path_filter=folder_exists if kind == "folder" else None)

    # --- set-up -------------------------------------------------------------------------------------------------------

    def _parser_of_cmd2(self, name: str) -> cmd2.Cmd2ArgumentParser | None:
        """Return the parser of a command that cmd2 brings."""
        command = getattr(cmd2.Cmd, f"do_{name}", None)
        return None if command is None else self.command_parsers.get(command.__get__(self))

    def _choose_settables(self) -> None:
        for name in list(self.settables):
            if name not in KEPT_SETTABLES:
                self.remove_settable(name)
                continue
            self.settables[name].description = help_text(self.settables[name].description)
        knobs = Knobs(self)
        for name, help_ in KNOBS.items():
            choices = {"theme": list(THEMES), "language": [*LANGUAGES, ""]}.get(name)
            completer = Prompt.complete_data if name == "data" else None
            self.add_settable(Settable(name, str, help_text(help_), knobs, choices=choices, completer=completer))
        self.add_settable(
            Settable(
                "paging",
                on_or_off,
                help_text("show what is longer than the screen page by page: on or off"),
                self,
                choices_provider=lambda _: cmd2.Choices.from_values(("on", "off")),
            )
        )

    def _bind_keys(self) -> None:
        """Let Ctrl+C leave at an empty prompt; elsewhere it clears the line."""

        def leave(event: KeyPressEvent) -> None:
            # Whoever stops a command in a hurry presses twice, or a moment too late, and does not mean the prompt.
            if time.monotonic() - self._ended_at > _HURRY:
                event.app.exit(exception=EOFError, style="class:exiting")

        bindings = self.main_session.key_bindings
        assert isinstance(bindings, KeyBindings)
        for key in (Keys.ControlC, Keys.SIGINT):
            bindings.add(key, filter=Condition(lambda: not get_app().current_buffer.text))(leave)


# `--data DIR` is a command of the prompt as it is of the command line; no method can be written with these names.
for _what in ("do", "help", "complete"):
    setattr(Prompt, f"{_what}_--data", getattr(Prompt, f"{_what}_data"))
setattr(Prompt, "help_!", Prompt.help_run)


def collect_garbage() -> None:
    """Collect what the line editor left, whose finalizers would swallow a Ctrl+C that comes while they run."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        gc.collect(1)
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def start(session: Session) -> int:
    """Run the prompt and return its exit code: for commands from a pipe that of the last failure."""
    prompt = Prompt(session, history_file() if sys.stdin.isatty() else "")
    code = prompt.cmdloop()
    return code or (DONE if prompt.stdin.isatty() else prompt.failed)
