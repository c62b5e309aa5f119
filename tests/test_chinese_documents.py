"""The Chinese README and guide are in step with the English ones: the same headings, commands, tables and options.

What differs is reported by heading. Change both languages together; what the screens show is held against the tool in
`test_readme.py`.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from precision_tool.lib.messages import catalogue

REPO = Path(__file__).resolve().parents[1]
#: The documents of both languages. The name of the other is in the first line of each.
PAIRS = (("README.md", "README.zh-CN.md"), ("precision_tool/GUIDE.md", "precision_tool/GUIDE.zh-CN.md"))
ENGLISH, CHINESE = catalogue.catalogue("en"), catalogue.catalogue("zh")
#: Words of screens that the documents quote as code: in Chinese they are those of the Chinese screens.
QUOTED = {
    ENGLISH[kind]: CHINESE[kind]
    for kind in (
        "screen.view.always_on",
        "screen.view.compare.card.own",
        "screen.view.profile.flag.tree",
        "screen.view.profile.flag.sequential",
    )
}
#: The words of a screen after which there is nothing to copy.
_SCREEN = re.compile(r"[┏╭]|\$ |precision-tool train|differs |不一致 ")


class Section(NamedTuple):
    """What stands below a heading, and must be the same in both languages."""

    heading: str
    facts: Counter[str]


def sections(text: str) -> list[Section]:
    """The sections of a document, the one before the first heading too."""
    found = [Section("(top)", Counter())]
    fence: list[str] | None = None
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.lstrip().startswith("```"):
            if fence is None:
                fence = [line.strip()]
            else:
                found[-1].facts.update(block_facts(fence))
                fence = None
        elif fence is not None:
            fence.append(line.strip())
        elif line.startswith("#"):
            found.append(Section(line, Counter({"level " + line.split()[0]: 1})))
        else:
            found[-1].facts.update(prose_facts(line))
            found[-1].facts["paragraphs"] += not before and bool(line)
    return found


def block_facts(fence: list[str]) -> Iterator[str]:
    """The commands and the code of a block, without their comments; of a screen only the command above it."""
    language, lines = fence[0].strip("`"), fence[1:]
    yield "block " + language
    if language == "json":
        yield from lines
    elif language:
        yield from (re.sub(r"\s*#.*", "", line) for line in lines)
    elif _SCREEN.match(lines[0]):
        yield from (line.split("  #")[0] for line in lines if re.match(r"(\$ )?precision-tool ", line))
    else:  # a tree of folders, or a table
        yield from (line.split("  ")[0] for line in lines)


def prose_facts(line: str) -> Iterator[str]:
    """Code, targets of links, and the shape of a line of prose."""
    yield from ("`" + QUOTED.get(code, code) + "`" for code in re.findall(r"`([^`]+)`", line))
    for target in re.findall(r"\]\(([^)]*)\)", line):
        yield "link to " + re.sub(r"#.*", "#", target).replace(".zh-CN.", ".")
    if line.startswith("|"):
        yield f"row of {len(line.split('|'))}"
    item = re.match(r"\s*(\d+\.|[-*]|\*\*\d+\.) ", line)
    if item:
        yield "item " + item[1]
    if line.startswith("|") or not line:
        return
    words = re.sub(r"`[^`]*`", "", line)
    yield from ("number " + number for number in re.findall(r"(?<![\w.])\d[\d,.]*\d(?!\w)", words))


def differences(english: str, chinese: str) -> list[str]:
    """What stands in only one of the two documents: one line per heading."""
    left, right = sections(english), sections(chinese)
    keys = [[str(sorted(one.facts.items())) for one in side] for side in (left, right)]
    told = []
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if i_end - i != j_end - j:
            told += [f"only in English, or differs: {one.heading}" for one in left[i:i_end]]
            told += [f"only in Chinese, or differs: {one.heading}" for one in right[j:j_end]]
            continue
        for one, other in zip(left[i:i_end], right[j:j_end], strict=True):
            only, more = (dict(one.facts - other.facts), dict(other.facts - one.facts))
            told.append(f"{one.heading} / {other.heading}: only in English {only}, only in Chinese {more}")
    return told


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_say_the_same(english: str, chinese: str) -> None:
    texts = [(REPO / name).read_text("utf-8") for name in (english, chinese)]
    assert "\n".join(differences(*texts)) == ""
    for text, other in zip(texts, (chinese, english), strict=True):
        assert f"]({Path(other).name})" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("## B\n", "## C\n\nSee `c`.\n\n## B\n"),
        ("`ac -c`", "`ac`"),
        ("precision-tool ls -t", "precision-tool ls -n"),
        ("| `x` | y |\n", ""),
        ("0.98", "0.99"),
        ("| `x`", "More.\n\n| `x`"),
    ],
)
def test_a_change_of_one_language_is_reported_by_its_heading(old: str, new: str) -> None:
    text = "# A\n\nUse `ac -c` at 0.98.\n\n| `x` | y |\n\n```sh\nprecision-tool ls -t Conv2D  # that\n```\n\n## B\n"
    assert differences(text, text.replace("  # that", "  # 这样").replace("Use", "用")) == []
    told = differences(text, text.replace(old, new))
    assert told
    assert all("# A" in line or "## C" in line for line in told)
