"""The commands of `commands/` as CommandSets of cmd2, one a family, with what Tab offers in their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import cmd2
from cmd2.argparse_completer import ArgparseCompleter

from precision_tool.lib.io.files import folder_exists
from precision_tool.lib.shell.commands.base import Completion, Parser, completion_of
from precision_tool.lib.shell.commands.registry import load_command
from precision_tool.lib.words import Word

if TYPE_CHECKING:
    from precision_tool.lib.shell.prompt import Prompt

#: Characters that mean nothing to any shell.
_PLAIN = re.compile(r"[\w./:@%+,=~\[\]-]*")


class WordSet(cmd2.CommandSet["Prompt"]):
    """The words of one family as commands of the prompt. The same `Command` runs as on the command line."""

    words: ClassVar[Sequence[Word]] = ()

    def __init__(self, prompt: Prompt) -> None:
        super().__init__()
        self._prompt = prompt

    def parser_of(self, word: str) -> Parser:
        """The parser of a word, with the settings in force as defaults."""
        return load_command(word).parser(self._prompt.session)

    def complete_word(self, word: str, text: str, line: str, begidx: int, endidx: int) -> cmd2.Completions:
        """What Tab offers within the arguments of a word."""
        tokens, _ = self._prompt.tokens_for_completion(line, begidx, endidx)
        completer = ArgparseCompleter(_completing(self.parser_of(word)), self._prompt)
        return completer.complete(text, line, begidx, endidx, tokens[1:], cmd_set=self)

    # cmd2 looks for a completer's object by the class that defines the function.
    def offer_op(self, text: str, *where: Any) -> cmd2.Completions:
        """Op names by any part."""
        return self._prompt.offers(Completion.OP, text)

    def offer_op_type(self, text: str, *where: Any) -> cmd2.Completions:
        """Op types."""
        return self._prompt.offers(Completion.OP_TYPE, text)

    def offer_pass(self, text: str, *where: Any) -> cmd2.Completions:
        """Fusion passes."""
        return self._prompt.offers(Completion.PASS, text)

    def offer_kernel(self, text: str, *where: Any) -> cmd2.Completions:
        """Kernels."""
        return self._prompt.offers(Completion.KERNEL, text)

    def offer_graph(self, text: str, *where: Any) -> cmd2.Completions:
        """Graph files: those of the data folder first."""
        return self._prompt.offers(Completion.GRAPH, text) or self.offer_file(text, *where)

    def offer_tensor(self, text: str, *where: Any) -> cmd2.Completions:
        """Ops, dump files and benchmark tensors, else any file."""
        return self._prompt.offers(Completion.TENSOR, text) or self.offer_file(text, *where)

    def offer_result(self, text: str, *where: Any) -> cmd2.Completions:
        """Result files: those of the data folder first."""
        return self._prompt.offers(Completion.RESULT, text) or self.offer_file(text, *where)

    def offer_metric(self, text: str, *where: Any) -> cmd2.Completions:
        """Metrics of a comparison: the last one of those with commas between them."""
        before, comma, last = text.rpartition(",")
        offers = self._prompt.offers(Completion.METRIC, last)
        return cmd2.Completions.from_values([before + comma + item.text for item in offers], is_sorted=True)

    def offer_layout(self, text: str, *where: Any) -> cmd2.Completions:
        """Layouts of tensors."""
        return self._prompt.offers(Completion.LAYOUT, text)

    def offer_file(self, text: str, *where: Any) -> cmd2.Completions:
        """Files and folders."""
        return self._prompt.path_complete(text, *where)

    def offer_folder(self, text: str, *where: Any) -> cmd2.Completions:
        """Folders."""
        return self._prompt.path_complete(text, *where, path_filter=folder_exists)


def quoted(completions: cmd2.Completions, before: str) -> cmd2.Completions:
    """The offers with quotes around them where one holds more than plain characters; `before` is what they follow.

    What no quotes can hold, for this prompt and for a shell behind it, is left out.
    """
    if all(_PLAIN.fullmatch(item.text) for item in completions):
        return completions
    given = before if before in ("'", '"') else ""
    quote = given or ("'" if not any("'" in item.text for item in completions) else '"')
    forbidden = "'" if quote == "'" else '"$`\\!'
    items = [item for item in completions if item.text.isprintable() and not set(item.text) & set(forbidden)]
    if given:
        return replace(completions, items=items)
    return replace(completions, items=items, _add_opening_quote=bool(items), _quote_char=quote)


def _completing(parser: Parser) -> cmd2.Cmd2ArgumentParser:
    """The arguments of a parser of ours in one that cmd2 completes."""
    known = cmd2.Cmd2ArgumentParser(prog=parser.prog, add_help=False)
    for action in parser._actions:
        kind = completion_of(action)
        if kind is not None:
            action.set_completer(getattr(WordSet, f"offer_{kind}"))  # type: ignore[attr-defined]
        # The menu shows it as it is.
        action.help = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        known._add_action(action)
    return known


def word_set(family: str, words: Sequence[Word]) -> type[WordSet]:
    """The CommandSet of one family: cmd2 finds commands as methods `do_*`."""
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
