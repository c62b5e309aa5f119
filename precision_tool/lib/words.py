"""The words of the command line, light enough to show help without loading any analysis.

This module runs on Python 3.7.
"""

from typing import NamedTuple, Optional, Tuple


class Word(NamedTuple):
    """A command: `aliases` are old names that keep working, `min_python` is the oldest Python that runs it.

    `family` is the heading it stands below in the help.
    """

    family: str
    name: str
    arguments: str
    help: str
    aliases: Tuple[str, ...] = ()
    min_python: Tuple[int, int] = (3, 11)


WORDS = (
    Word("Compare", "ac", "[-c] [-l N]", "check everything and name the first op that computes wrong"),
    Word("Compare", "vc", "[-lt DIR] [-rt DIR] [-g GRAPH]", "compare two dump folders, op by op", ("vector_compare",)),
    Word("Compare", "vcs", "[-f FILE] [-c COS] [-l N]", "list the ops below a cosine similarity, in execution order"),
    Word(
        "Look closer", "ls", "[dump] [-n NAME] [-t TYPE] ...", "list ops, or dump files, by name, type, pass and kernel"
    ),
    Word(
        "Look closer",
        "ni",
        "NAME [-g GRAPH] [-a] [-s N]",
        "all about one op: graph, neighbours, dumped tensors; -s draws it",
    ),
    Word("Look closer", "graphs", "[--find WORD] [--use FILE]", "the graph files, and which one is in use and why"),
    Word("Tensors", "pt", "FILE|NAME [-c]", "one tensor: statistics, histogram, first values"),
    Word("Tensors", "cp", "LEFT RIGHT [-p N] [-s]", "compare two tensors element by element", ("compare",)),
    Word("Tensors", "dc", "FILE|DIR|OP [-f FORMAT] [-o DIR]", "decode NPU dumps to .npy"),
    Word("Data", "data", "DIR [COMMAND ...]", "the prompt, or COMMAND, on another data folder", min_python=(3, 7)),
    Word("Data", "demo", "[DIR]", "generate demo data with one faulty op and find it"),
    Word("Data", "run", "CMD", "run a command of the operating system; at the prompt also !CMD"),
)


def find_word(name: str) -> Optional[Word]:
    """The word of this name or old name."""
    for word in WORDS:
        if name == word.name or name in word.aliases:
            return word
    return None
