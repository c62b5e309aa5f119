"""What is found is values; the sentences on it stand in the catalogue. Kept by machine for all rooms below the view,
and for what the commands print.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LIB = Path(__file__).resolve().parents[1] / "precision_tool" / "lib"
#: The rooms below the view, whose sentences are counted.
ROOMS = ("model", "io", "data", "ops", "training", "compare", "diagnose")
#: Texts of three words and more that stay: how many of a module (None: any number), and why. One that goes away is
#: taken off here.
STAY: dict[str, tuple[int | None, str]] = {
    "compare/arrays.py": (1, "a repr"),
    "compare/columns.py": (1, "the mark of a scalar in the vendor's result files"),
    "compare/named_tensors.py": (1, "stands where the name of a layout does"),
    "compare/toolkit.py": (1, "a command of the shell"),
    "data/graph_cache.py": (1, "a line of the log"),
    "data/graph_catalog.py": (None, "GE's names of kinds of kernels"),
    "data/msprobe_ops.py": (1, "a regular expression"),
    "diagnose/plan.py": (10, "lines of a training script"),
    "diagnose/bisect_changes.py": (3, "lines of a training script"),
    "diagnose/overflow.py": (1, "the value of a key of JSON"),
    "diagnose/graph_diff.py": (1, "stands where the name of an op does"),
    "diagnose/study_journal.py": (None, "statements of SQL"),
    "io/cache.py": (1, "a line of the log"),
    "io/fusion_passes.py": (2, "a regular expression; the name of a text that is no file"),
    "io/ge_graph_partial.py": (None, "regular expressions"),
    "io/hdf5_child.py": (2, "an answer to the parent process, which has HDF5's own words else"),
    "io/hdf5_process.py": (1, "a program"),
    "io/om_file.py": (None, "fields of messages and their types, names of parts of a file"),
    "io/opdebug.py": (1, "the name of a unit of the chip"),
    "io/readers.py": (2, "names of columns"),
    "io/remote.py": (1, "looked for in what the SSH library says"),
    "io/tf_graph.py": (None, "fields of messages and their types"),
    "io/tfdbg_files.py": (1, "the header of an .npy file"),
    "model/pytorch.py": (2, "names of types"),
    "model/wording.py": (1, "stands where the name of a pass does"),
    "ops/optimizers.py": (None, "names of inputs, one after the other"),
    "training/mixlist.py": (2, "lines of a script"),
    "training/packages.py": (3, "looked for in what TensorFlow says"),
    "training/saving.py": (3, "a docstring, and what TensorFlow says"),
    "training/tfdbg_analyzer.py": (1, "looked for in what Python says"),
}
_WORD = re.compile(r"[A-Za-z]{2,}")
_LOGS = ("log", "logger", "logging", "warnings")


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """The texts of three words and more in a module, by line; docstrings, errors and logs are none.

    What stands between the words of an f-string counts as no word.
    """
    tree = ast.parse(source)
    passed = {id(inner) for node in ast.walk(tree) if _is_passed(node) for inner in ast.walk(node)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in passed or (id(node) in parts and not isinstance(node, ast.JoinedStr)):
            continue
        text = _text(node)
        if len([word for word in text.split() if _WORD.search(word)]) >= 3:
            yield node.lineno, text  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
    return ""


def _is_passed(node: ast.AST) -> bool:
    """Whether the texts in a part of a module are none that are counted."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.Raise):
        return True
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    if isinstance(func, ast.Name):
        return func.id.endswith("Error") or func.id == "_metric"  # its name is that of a column
    if not isinstance(func, ast.Attribute):
        return False
    owner = func.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    is_error = func.attr.endswith("Error") or name.endswith("Error") or func.attr == "__init__"
    return is_error or name in _LOGS


MODULES = sorted(path for room in ROOMS for path in (LIB / room).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_sentence_is_written_where_things_are_found(path: Path) -> None:
    count, _ = STAY.get(f"{path.parent.name}/{path.name}", (0, ""))
    found = list(sentences(path.read_text("utf-8")))
    assert count is None or len(found) == count, found


#: What a command prints that is no word of a language: styles, parts of commands, and marks of errors.
NO_WORDS = ("dim", "bold", "bold red", "yellow", "cyan", " --data ", "python3 ", "check.py", "error: ", "hint: ")
#: The function that reports an error in the tool itself; that line is English in every language.
INTERNAL = ("internal error (", "); please report it")
_RENDERED = ("text", "Message", "render")


def printed(source: str) -> Iterator[tuple[int, str]]:
    """The texts that a module prints, or makes a line of, and that are not in the catalogue."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not re.search(r"\b(print|\w+_line)$", ast.unparse(call.func)):
            continue
        inner = [node for argument in call.args for node in ast.walk(argument)]
        calls = [node for node in inner if isinstance(node, ast.Call)]
        passed = {id(part) for node in calls if ast.unparse(node.func) in _RENDERED for part in ast.walk(node)}
        for node in inner:
            if not isinstance(node, ast.Constant) or id(node) in passed or node.value in (*NO_WORDS, *INTERNAL):
                continue
            if isinstance(node.value, str) and _WORD.search(node.value):
                yield node.lineno, node.value


@pytest.mark.parametrize("path", sorted((LIB / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_what_commands_print_is_in_the_catalogue(path: Path) -> None:
    assert list(printed(path.read_text("utf-8"))) == []


def test_what_counts_as_printed() -> None:
    source = """
output.print_line(text("screen.kind", name="x"))
output.out.print(table_line("table", path), style="dim")
output.print_line(f"{count} result files")
"""
    assert {line for line, _ in printed(source)} == {3, 4}


#: Words of Chinese for which the texts use another, always the same one: what readers search for.
ONE_TERM = {
    "计算图": "图 or 图文件",
    "基准": "标杆",
    "转储": "dump",
    "操作符": "算子",
    "融合 pass": "融合规则",
    "余弦值": "余弦相似度",
    "解码": "解析",
    "布局": "数据排布",
    "形状": "shape",
    "重算": "重新计算",
    "逐位": "逐比特",
    "检查点": "checkpoint",
    "损失缩放": "loss scale",
    "loss 缩放": "loss scale",
    "设置项": "配置项",
    "工具包": "Toolkit",
    "文件夹": "目录",
    "规约": "归约",
    "个规则": "条规则",
    "个融合规则": "条融合规则",
    "精度对比": "精度比对",
}
CHINESE = (
    "README.zh-CN.md", "precision_tool/GUIDE.zh-CN.md",
    "precision_tool/lib/messages/zh.json", "precision_tool/lib/messages/help.zh.json",
)  # fmt: skip


@pytest.mark.parametrize("name", CHINESE)
def test_chinese_texts_have_one_term_for_each_thing(name: str) -> None:
    lines = LIB.parents[1].joinpath(name).read_text("utf-8").splitlines()
    found = [f"{word} ({ONE_TERM[word]}): {line.strip()[:80]}" for line in lines for word in ONE_TERM if word in line]
    assert found == []


def test_every_exception_has_a_module_and_a_reason() -> None:
    for name, (count, reason) in STAY.items():
        assert (LIB / name).is_file()
        assert count != 0
        assert reason


def test_what_counts_as_a_sentence() -> None:
    source = """
'''A docstring of many words.'''
name = "two words"
told = f"{name} is off by {3:.2f} here"
raise ValueError(f"{name} cannot be read")
log.info("read all of it")
space.notes.append("one is newer than this")
space.notes += ["one is newer than this"]
why = "its inputs agree"
METRICS = (_metric("total abs error", "total_absolute_error"),)
"""
    assert sorted(line for line, _ in sentences(source)) == [4, 7, 8, 9]
