"""Commands and options that texts name exist, and take what is written behind them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest

from precision_tool.lib.cli.arguments import Parser
from precision_tool.lib.cli.command import load_command
from precision_tool.lib.cli.words import GLOBAL_OPTIONS, WORDS, find_word
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.messages.catalogue import catalogue
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session

#: What stands for a placeholder of a text in a command; of others `X`.
FILLED = {"place": " --step 1", "path": "model.om", "folder": "DIR"}
#: Words of the prompt alone.
AT_THE_PROMPT = {"refresh", "data", "set", "help"}
#: What else stands in backquotes: files, their members, functions, and programs of others.
NO_COMMANDS = {
    "--data", "data.pkl", "dump.json", "dump_path", "torch.save", "npu-smi", "ssh", "python3", "dask", "all", "op.json",
    "atc", "op", "aclopSetModelDir", "aclopExecuteV2", "--run",
}  # fmt: skip
#: Options of others' programs, and what only looks like an option.
NO_OPTIONS = {
    "-Inf", "-rf", "-log", "-m", "-t", "-u", "--mode", "--om", "--disable_reuse_memory", "--scheduler-file", "--steps",
    "--txt", "--singleop", "--soc_version",
}  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    """All texts in both languages, by kind."""
    for language in ("en", "zh"):
        for kind, text in catalogue(language).items():
            yield f"{language} {kind}", text


def filled(text: str) -> str:
    """A text with words in place of its placeholders; parts that stand there only sometimes are kept."""
    text = re.sub(r"\{[?!]\w+ ?([^{}]*)\}", r"\1", text)
    return re.sub(r"\{(\w+)[^{}]*\}", lambda match: FILLED.get(match[1], "X"), text)


@cache
def parser_of(name: str) -> Parser:
    return load_command(name).parser(Session(Settings()))


def check_command(words: list[str]) -> None:
    """A command line without the program's name; what a command runs for its subject is checked as well."""
    name, *rest = words
    if name == "infer" and len(rest) > 1:
        check_command(rest[1:])
        rest = rest[:1]
    try:
        parser_of(name).parse_args(rest)
    except SystemExit:
        assert rest == ["-h"]
    except UsageError as error:
        # A text may name a command or an option without its argument, but never with what it does not take.
        problem = str(error)
        assert re.search("required|expected one argument", problem), problem


NAMED = [(kind, span) for kind, text in texts() for span in re.findall(r"`([^`]+)`", text)]


def test_commands_in_backquotes_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for kind, span in NAMED:
        words = ["3" if word == "N" else word for word in shlex.split(filled(span).replace(" ...", ""))]
        if words[0] == "precision-tool":
            del words[0]
        if words[0] in NO_COMMANDS or words[0] in AT_THE_PROMPT or re.fullmatch(r"X|DIR|.*\.npy", words[0]):
            continue
        word = find_word(words[0])
        if word is None or word.name != words[0]:
            wrong.append(f"{kind}: {span}: no command")
            continue
        try:
            check_command(words)
        except AssertionError as error:
            wrong.append(f"{kind}: {span}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(NAMED) > 300


OPTION = r"(?<![\w-])--?[a-zA-Z][\w-]*"


def test_options_in_texts_exist() -> None:
    """Those behind a command's name are of that command, others of any."""
    known = {name: set(parser_of(name)._option_string_actions) for name in COMMANDS}
    everywhere = set(GLOBAL_OPTIONS).union(NO_OPTIONS, *known.values())
    wrong = []
    for kind, text in texts():
        if " page." in kind:
            continue
        wrong += [f"{kind}: {option}" for option in re.findall(OPTION, text) if option not in everywhere]
        for name, options in re.findall(rf"(?<![\w-])({'|'.join(COMMANDS)})((?: {OPTION})+)", text):
            wrong += [f"{kind}: {name} {option}" for option in options.split() if option not in known[name]]
    assert not wrong, "\n".join(wrong)


COMMANDS = [word.name for word in WORDS if word.name != "data"]
