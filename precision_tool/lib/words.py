"""The words of the command line, light enough to show help without loading any analysis.

This module runs on Python 3.7.
"""

from typing import NamedTuple, Optional, Tuple


class Word(NamedTuple):
    """A command: `aliases` are old names that keep working, `min_python` is the oldest Python that runs it.

    `family` is the heading it stands below in the help, `plain` the `module:NAME` below `precision_tool.lib` of the
    PlainCommand of words that need no analysis and so run in training environments. A word that `makes_data` does
    not need a data folder that is there.
    """

    family: str
    name: str
    arguments: str
    help: str
    aliases: Tuple[str, ...] = ()
    min_python: Tuple[int, int] = (3, 11)
    plain: str = ""
    makes_data: bool = False


_TRAINING = (3, 7)

WORDS = (
    Word("Compare", "ac", "[-c] [-l N]", "check everything and name the first op that computes wrong"),
    Word("Compare", "vc", "[-lt DIR] [-rt DIR] [-g GRAPH]", "compare two dump folders, op by op", ("vector_compare",)),
    Word("Compare", "vcs", "[-f FILE] [-c COS] [-l N]", "list the ops below a cosine similarity, in execution order"),
    Word("Compare", "report", "[RESULT] [-o FILE.html]", "all of a result as one HTML file, to look at and to send"),
    Word("Find causes", "overflow", "[DIR] [-l N] [--mixlist]", "the op that overflows first, and what to do about it"),
    Word(
        "Find causes",
        "random",
        "[-lt DIR] [-rt DIR]",
        "ops that compute differently in two runs of one script, and overwritten memory",
    ),
    Word(
        "Find causes",
        "fusion",
        "[show|off|on|all-off|reset|blame|bisect] ...",
        "fusion passes: in effect, switched on and off, the one that computes wrong",
    ),
    Word(
        "Look closer", "ls", "[dump] [-n NAME] [-t TYPE] ...", "list ops, or dump files, by name, type, pass and kernel"
    ),
    Word(
        "Look closer",
        "ni",
        "NAME [-g GRAPH] [-a [ATTR]] [-s N]",
        "all about one op: graph, neighbours, dumped tensors; -s draws it",
    ),
    Word(
        "Look closer", "repro", "OP [DIR]", "one op cut out of its network, with a script that shows its error anywhere"
    ),
    Word("Look closer", "graphs", "[--find WORD] [--use FILE]", "the graph files, and which one is in use and why"),
    Word("Look closer", "graph", "diff [LEFT RIGHT]", "what differs between the graphs of two runs, grouped"),
    Word("Tensors", "pt", "FILE|NAME [-c]", "one tensor: statistics, histogram, first values"),
    Word("Tensors", "cp", "LEFT RIGHT [-p N] [-s]", "compare two tensors element by element", ("compare",)),
    Word("Tensors", "dc", "FILE|DIR|OP [-f FORMAT] [-o DIR]", "decode NPU dumps to .npy"),
    Word("PyTorch", "h5copy", "-i FILE -o FILE -s /OP/SEQ", "copy ops of a PyTorch .h5 dump into another file"),
    Word(
        "PyTorch",
        "acl_json",
        "[FILE] [--dump-path DIR]",
        "write or check the acl.json that dumps single ops",
        min_python=_TRAINING,
        plain="collect.acl_json:ACL_JSON",
    ),
    Word(
        "Collect",
        "tf_dump",
        "[CMD]",
        "benchmark tensors out of what tfdbg dumped on CPU or GPU",
        min_python=_TRAINING,
        plain="collect.tfdbg.command:TF_DUMP",
        makes_data=True,
    ),
    Word(
        "Collect",
        "npu_dump",
        "CMD",
        "run a training command with data dump on",
        min_python=_TRAINING,
        plain="collect.command:NPU_DUMP",
        makes_data=True,
    ),
    Word(
        "Collect",
        "npu_overflow",
        "CMD",
        "run a training command with overflow detection on",
        min_python=_TRAINING,
        plain="collect.command:NPU_OVERFLOW",
        makes_data=True,
    ),
    Word(
        "Collect",
        "train",
        "[-d DEVICE] [-a ACTION]",
        "replay a saved training step on CPU and NPU",
        min_python=_TRAINING,
        plain="collect.command:TRAIN",
    ),
    Word("Toolkit", "toolkit", "", "what was found of the vendor's toolkit, its versions, and what is missing"),
    Word("Toolkit", "graph2json", "GRAPH [OUT]", "a graph, text or .om, as the JSON that atc makes of it"),
    Word("Data", "data", "DIR [COMMAND ...]", "the prompt, or COMMAND, on another data folder", min_python=_TRAINING),
    Word(
        "Data",
        "infer",
        "DIR|FILE.om [COMMAND ...]",
        "the prompt, or COMMAND, on what msquickcmp wrote; what an .om holds",
    ),
    Word("Data", "demo", "[DIR]", "generate demo data with one faulty op and find it", makes_data=True),
    Word("Data", "run", "CMD", "run a command of the operating system; at the prompt also !CMD", makes_data=True),
)


#: What only the prompt has.
PROMPT_WORDS = ("set", "history", "run_script", "refresh", "exit", "quit")


def find_word(name: str) -> Optional[Word]:
    """The word of this name or old name."""
    for word in WORDS:
        if name == word.name or name in word.aliases:
            return word
    return None
