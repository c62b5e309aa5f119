"""The words of the command line, light enough to show help without loading any analysis.

This module runs on Python 3.7.
"""

from typing import NamedTuple, Optional, Tuple


class Word(NamedTuple):
    """A command: `aliases` are old names that keep working, `min_python` is the oldest Python that runs it."""

    name: str
    arguments: str
    help: str
    aliases: Tuple[str, ...] = ()
    min_python: Tuple[int, int] = (3, 11)


WORDS = (
    Word("ac", "[-c] [-l N]", "check everything and name the first op that computes wrong (-c: compare first)"),
    Word("vc", "[-lt DIR] [-rt DIR] [-g GRAPH]", "compare two dump folders, op by op", ("vector_compare",)),
    Word("vcs", "[-f FILE] [-c COS] [-l N]", "list the ops below a cosine similarity, in execution order"),
    Word("data", "DIR COMMAND ...", "do COMMAND on another data folder, as --data DIR does", min_python=(3, 7)),
    Word("demo", "[DIR]", "generate demo data with one faulty op and find it"),
)


def find_word(name: str) -> Optional[Word]:
    """The word of this name or old name."""
    for word in WORDS:
        if name == word.name or name in word.aliases:
            return word
    return None
