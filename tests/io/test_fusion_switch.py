"""The grammar of fusion switch files: what is understood, what is refused with which line, what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ge_switch_parser import ge_takes
from hypothesis import given
from hypothesis import strategies as st

from precision_tool import tf_config
from precision_tool.lib.io.fusion_passes import ALWAYS_ON, GRAPH, ON_BY_NAME, SECTIONS, UB, is_switchable
from precision_tool.lib.io.fusion_switch import (
    ALL,
    EITHER,
    SHIPPED_OFF,
    SHIPPED_SWITCH,
    Switches,
    parse_switches,
    read_switches,
    render,
    text_to_write,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError

#: The examples of the documents (shared/seeds), the first with its trailing comma.
DOCUMENTED = """{
 "Switch":{
  "GraphFusion":{
   "ConvToFullyConnectionFusionPass":"off",
  },
  "UBFusion":{
   "TbePool2dQuantFusionPass":"off"
  }
 }
}
"""
ALL_BUT_ONE = '{"Switch": {"GraphFusion": {"ALL": "off", "SoftmaxFusionPass": "on"}, "UBFusion": {"ALL": "off"}}}'

names = st.text(st.sampled_from("abcXYZ_019"), min_size=1, max_size=8) | st.just(ALL)
passes = st.dictionaries(names, st.booleans(), max_size=5)
json_switches = st.builds(
    lambda sections, others: Switches(sections=sections, others=others),
    st.dictionaries(st.sampled_from(SECTIONS), passes, min_size=2, max_size=2),
    st.dictionaries(
        st.just("Priority"),
        st.dictionaries(
            st.sampled_from(SECTIONS),
            st.dictionaries(st.just("Top"), st.dictionaries(names, st.integers(0, 999).map(str))),
        ),
    ),
)
#: With a first name that GE does not take for a number.
line_switches = passes.map(lambda found: Switches(sections={EITHER: {"First": True, **found}}, is_old_form=True))


def parts(switches: Switches) -> object:
    sections = {name: dict(found) for name, found in switches.sections.items()}
    return sections, dict(switches.others), switches.is_old_form


@given(json_switches | line_switches)
def test_what_is_written_is_read_back(switches: Switches) -> None:
    again = parse_switches(render(switches))
    assert parts(again) == parts(switches)
    assert again.notes == again.refused == ()


@given(json_switches)
def test_what_is_written_is_strict_json(switches: Switches) -> None:
    document = json.loads(render(switches))
    assert set(document) == {"Switch", *switches.others}
    assert set(document["Switch"]) == set(SECTIONS)
    for section, found in document["Switch"].items():
        assert {name: word == "on" for name, word in found.items()} == switches.sections[section]


@given(json_switches, st.data())
def test_comments_and_trailing_commas_change_nothing(switches: Switches, data: st.DataObject) -> None:
    tokens = re.findall(r'"[^"]*"|[{}\[\]:,]', render(switches))
    filling = st.sampled_from(["", " ", "\n", "// why\n", "/* two\nlines */", "# also\n"])
    text = "".join(
        data.draw(filling)
        + token
        + ("," if follower in "}]" and token not in "{[," and data.draw(st.booleans()) else "")
        for token, follower in zip(tokens, [*tokens[1:], "end"], strict=True)
    )
    again = parse_switches(text)
    assert parts(again) == parts(switches)
    assert bool(again.refused) == (re.sub(r"\s", "", text) != re.sub(r"\s", "", render(switches)))


@given(st.text(st.sampled_from('{}[]":,onfAL/*#\\ \n\t01.-Switch'), max_size=60) | st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        switches = parse_switches(text, "file.cfg")
    except FormatError as error:
        assert re.match(r"file\.cfg line \d+: .", error.message)  # noqa: PT017
        assert error.hint  # noqa: PT017
    else:
        assert parts(parse_switches(render(switches))) is not None


@pytest.mark.parametrize(
    ("text", "sections", "words"),
    [
        ('{"Switch": {\n"GraphFusion": {"A": "off",\n"A": "on"}}}', {GRAPH: {"A": True}},
         "line 3: 'A' is also in line 2; GE takes the last"),
        ('{"Switch": {"UBFusion": {"A": "off"},\n"UBFusion": {"B": "off"}}}', {UB: {"B": False}},
         "line 2: 'UBFusion' is also in line 1"),
        ('{"Switch": {"UBFusion": {"A": "off"}},\n"Switch": {"GraphFusion": {}}}', {GRAPH: {}},
         "line 2: 'Switch' is also in line 1"),
        ("{}", {}, "there is no member 'Switch'"),
        ('{"Priority": {}}', {}, "there is no member 'Switch'"),
        ('{"Switch": {"UBFusion": {"A": "off"}}}\n} // {', {UB: {"A": False}},
         "line 2: GE does not read what follows the closing brace"),
        ('{"Switch": {}} {"Switch": {"UBFusion": {"A": "off"}}}', {}, "follows the closing brace"),
        ('{"Switch": {"UBFusion": {"A": " on"}}}', {UB: {"A": False}},
         'A: " on" is off to GE'),
        ('{"Switch": {"UBFusion": {"B ": "off"}}}', {UB: {"B ": False}}, "'B ': GE passes over it because of"),
        ('{"Switch": {" UBFusion": {"A": "off"}}}', {}, "GE passes over it"),
        ("null\n", {}, "passes over the whole file"),
        ("nullPass:off // why\n", {EITHER: {"nullPass": False}}, "passes over the whole file"),
    ],
)  # fmt: skip
def test_what_ge_takes_and_reads_in_its_own_way(text: str, sections: dict[str, dict[str, bool]], words: str) -> None:
    found = parse_switches(text)
    assert ge_takes(text)
    assert not found.refused
    assert found.sections == sections
    assert any(words in str(note) for note in found.notes)
    again = parse_switches(render(found))
    assert again.refused == ()


def priority(text: str) -> str:
    return '{"Switch": {"UBFusion": {"A": "off"}}, "Priority": ' + text + "}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        (" \n\t\n", "it is empty"),
        ("A:on\n  \nB:off\n", "line 2: nothing but blanks"),
        ("3Pass:on\n", "it begins with a number"),
        ("01Pass:on\n", "it begins with a number"),
        ("-1.5e3Pass:on\n", "it begins with a number"),
        ("truePass:on\n", "it begins with true"),
        ("falsePass:on\n", "it begins with false"),
        ("A:on // why\n", "line 1: a comment"),
        ('// why\n{"Switch": {}}', "line 1: a comment"),
        ('{"Switch": {},\n}', "line 1: a comma after the last member"),
        ('{"Switch":\u00a0{}}', "line 1: a blank character that JSON does not allow"),
        (priority("[]"), "Priority is not an object"),
        (priority('{"Fusion": {}}'), "Priority, Fusion: unknown section"),
        (priority('{"UBFusion": []}'), "Priority, UBFusion is not an object"),
        (priority('{"UBFusion": {"top": {}}}'), "Priority, UBFusion, top: unknown level; known are Top, Main, Down"),
        (priority('{"UBFusion": {"Top": "1"}}'), "Priority, UBFusion, Top is not an object"),
        (priority('{"UBFusion": {"Top": {"A": 1}}}'), "Priority, UBFusion, Top, A: 1 is not a number as a string"),
        (priority('{"UBFusion": {"Top": {"A": "x"}}}'), "'x' is not a whole number"),
        (priority('{"UBFusion": {"Top": {"A": "-1"}}}'), "'-1' is not a whole number"),
        (priority('{"UBFusion": {"Top": {"A": "1000"}}}'), "'1000' is not between 0 and 999"),
        (priority('{"UBFusion": {"Main": {"A": "999"}}}'), "'999' is not between 1000 and 1999"),
        (priority('{"UBFusion": {"Down": {"A": "3000"}}}'), "'3000' is not between 2000 and 2999"),
        (priority('{"UBFusion": {"Top": {"A": "1"}, "Main": {"A": "1000"}}}'), "A has a priority already"),
        ('{"ExceptionalPassOfO1Level": "A"}', "ExceptionalPassOfO1Level is not a list"),
        ('{"ExceptionalPassOfO1Level": ["A", 1]}', "a name of a pass is not a string"),
    ],
)
def test_what_ge_refuses_is_read_and_told(text: str, words: str) -> None:
    assert not ge_takes(text)
    found = parse_switches(text)
    assert words in str(found.refused[0])
    if found.others:  # which is the user's own to mend
        with pytest.raises(FormatError, match=r"f\.cfg: GE would refuse this file: "):
            text_to_write(found, "f.cfg")
    else:
        written = text_to_write(found, "f.cfg")
        assert ge_takes(written)
        assert sorted(found.named()) == sorted(
            (where if where in found.sections else EITHER, name, on)
            for where, name, on in parse_switches(written).named()
            if where in found.sections or where != UB
        )


def test_what_ge_takes() -> None:
    for text in (
        priority('{"UBFusion": {"Top": {"A": "0", "B": " 999 "}, "Main": {"C": "1000"}, "Down": {"D": "2999"}}}'),
        '{"Switch": {}, "ExceptionalPassOfO1Level": ["A", ""]}',
        "1e:on\n",  # no number after all
        "1.Pass:on\n",
        "tru:on\n",
        "A:on\n\nB : off\n",
    ):
        assert ge_takes(text)
        assert parse_switches(text).refused == ()


_PIECES = st.sampled_from([
    "{", "}", "[", "]", ",", ":", " ", "\n", '"Switch"', '"GraphFusion"', '"UBFusion"', '"Priority"', '"Top"', '"on"',
    '"off"', '"A"', '"B"', '"7"', "1", "true", "null", "// x", "# x", "A:on", "B:off", "3",
    '"ExceptionalPassOfO1Level"',
])  # fmt: skip
_START = st.sampled_from([
    "", '{"Switch": {"GraphFusion": {"A": "off", "B": "on"}, "UBFusion": {"A": "off"}}}', "A:on\nB:off\n",
    '{"Priority": {"UBFusion": {"Top": {"A": "7"}}}, "ExceptionalPassOfO1Level": ["A"]}',
])  # fmt: skip


@given(_START, st.lists(st.tuples(st.integers(0, 90), st.integers(0, 6), _PIECES | st.just("")), max_size=3))
def test_a_file_counts_as_refused_as_ge_does(text: str, changes: list[tuple[int, int, str]]) -> None:
    """Texts with a few pieces left out and put in, against the parser written after GE's."""
    for at, length, piece in changes:
        text = text[:at] + piece + text[at + length :]
    try:
        found = parse_switches(text)
    except FormatError:
        return  # what cannot be read at all; GE takes a few of these as lines with names that no pass has
    assert ge_takes(text) == (not found.refused), text


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[]", 1, "JSON is not an object"),
        ('"text"', 1, "JSON is not an object"),
        ('{"Switch": []}', 1, "'Switch' is not an object"),
        ('{"Switch": {"GraphFusion": "off"}}', 1, "'GraphFusion' is not an object"),
        ('{"Switch": {\n"Fusion": {}}}', 2, "unknown section 'Fusion'; known are GraphFusion and UBFusion"),
        ('{\n"Swich": {}}', 2, "unknown member 'Swich'"),
        ('{"Switch": {"GraphFusion": {\n"A": "off",\n"B": "Off"}}}', 3, 'B: "Off" is neither on nor off'),
        ('{"Switch": {"GraphFusion": {"A": false}}}', 1, "A: false is neither"),
        ('{"Switch": {"GraphFusion": {"A": off}}}', 1, "'off' is not a JSON value; texts need double quotes"),
        ('{"Switch": {"GraphFusion": {A: "off"}}}', 1, "a name in double quotes is missing before 'A'"),
        ('{"Switch": {"GraphFusion": {"A" "off"}}}', 1, "a colon is missing after 'A'"),
        ('{"Switch": {"GraphFusion": {"A": "on"\n"B": "on"}}}', 2, "a comma or } is missing before '\"B\"'"),
        ('{"Switch": {"GraphFusion": {"A":}}}', 1, "a value is missing before '}'"),
        ('{"Switch": {}', 1, "a comma or } is missing before the end of the file"),
        ('{"Switch": {}, "Priority": ' + "[" * 70 + "]" * 70 + "}", 1, "nested too deeply"),
        ('{"Switch": {"GraphFusion": {"\\q": "on"}}}', 1, "an unknown escape"),
        ('{"Switch": {}, "Priority": NaN}', 1, "'NaN' is not a JSON value"),
        ("APass:on\nBPass", 2, "is neither JSON nor a line PASS:on or PASS:off"),
        ("APass:on\nBPass:yes", 2, "BPass: 'yes' is neither on nor off"),
        ("APass:on\n\nAPass:off", 3, "'APass' is in line 1 too"),
        ("A Pass:on", 1, "is neither JSON nor"),
        ("Switch{}", 1, "is neither JSON nor"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_switches(text, "f.cfg")
    assert caught.value.message.startswith(f"f.cfg line {line}: ")
    assert words in caught.value.message


def test_the_documented_files() -> None:
    documented = parse_switches(DOCUMENTED)
    assert documented.refused == (Message("note.io.switch.no_json.comma", line=4),)
    assert list(documented.named()) == [
        (GRAPH, "ConvToFullyConnectionFusionPass", False), (UB, "TbePool2dQuantFusionPass", False)
    ]  # fmt: skip
    but_one = parse_switches(ALL_BUT_ONE)
    assert but_one.is_on("SoftmaxFusionPass")
    assert not but_one.is_on("ConvConcatFusionPass")
    assert not but_one.is_on("FusionVirtualOpSetSwitch", UB)
    old = parse_switches("ALL:off\n  SoftmaxFusionPass : on\n# the end\n")
    assert old.is_old_form
    assert old.is_on("SoftmaxFusionPass", GRAPH)
    assert not old.is_on("TbeAny")
    assert old.refused == (Message("note.io.switch.no_json.comment", line=3),)


def test_a_named_pass_beats_all_and_nothing_named_is_on() -> None:
    switches = Switches(sections={GRAPH: {ALL: False, "A": True}, UB: {"B": False}})
    assert [switches.is_on(name, GRAPH) for name in ("A", "B", "C")] == [True, False, False]
    assert [switches.is_on(name, UB) for name in ("A", "B", "C")] == [True, False, True]
    # Without a section: where the pass is named, else off only if both sections say so.
    assert [switches.is_on(name) for name in ("A", "B", "C", "TbeC")] == [True, False, True, True]
    assert not Switches(sections={GRAPH: {ALL: False}, UB: {ALL: False}}).is_on("TbeC")
    assert Switches().is_on("A")


@given(json_switches | line_switches, names, st.booleans(), st.sampled_from(SECTIONS))
def test_a_pass_is_what_it_was_switched_to(switches: Switches, name: str, on: bool, section: str) -> None:
    changed = switches.with_pass(name, on, section)
    if name != ALL:
        assert changed.is_on(name) is on
        named = [where for where, one, _ in switches.named() if one == name]
        assert {where for where, one, _ in changed.named() if one == name} == (
            {EITHER} if switches.is_old_form else {*named, section}
        )
        both = {where for where, one, on_ in switches.with_pass(name, on).named() if one == name and on_ is on}
        assert both == ({EITHER} if switches.is_old_form else set(SECTIONS))
    others = [one for one in switches.named() if one[1] != name]
    assert [one for one in changed.named() if one[1] != name] == others


@given(json_switches | line_switches, names.filter(lambda name: name != ALL) | st.sampled_from([*ON_BY_NAME]))
def test_all_off_is_all_off(switches: Switches, name: str) -> None:
    off = switches.all_off()
    assert not any(off.is_on(name, section) for section in (None, *SECTIONS))
    assert off.others == switches.others
    assert off.is_old_form == switches.is_old_form


def test_what_stays_on_by_ges_own_file() -> None:
    """A name of GE's own file beats the user's ALL, a name of the user's file beats both."""
    off = Switches(sections={GRAPH: {ALL: False}, UB: {ALL: False}})
    assert set(off.left_on()) == set(ON_BY_NAME)
    assert all(off.is_on(name) and off.is_on(name, ON_BY_NAME[name]) for name in ON_BY_NAME)
    assert not off.is_on("LayerNormGradV3FusionPass", UB)  # which is not where GE looks for it
    for whole in (SHIPPED_OFF, off.all_off(), parse_switches("ALL:on\n").all_off()):
        assert whole.left_on() == ()
        assert not any(whole.is_on(name) for name in ON_BY_NAME)
    assert Switches().left_on() == SHIPPED_SWITCH.left_on() == ()


def test_what_is_shipped_is_in_the_files() -> None:
    for path, shipped in ((tf_config.FUSION_OFF_FILE, SHIPPED_OFF), (tf_config.FUSION_SWITCH_FILE, SHIPPED_SWITCH)):
        assert Path(path).read_text("ascii") == render(shipped)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "fusion.cfg"
    with pytest.raises(DataNotFoundError):
        read_switches(str(path))
    path.write_bytes(b'{"Switch":\n{"\xff": {}}}')
    with pytest.raises(FormatError, match="line 2: not UTF-8 text"):
        read_switches(str(path))
    path.write_bytes(b"\xef\xbb\xbf" + ALL_BUT_ONE.encode())
    assert read_switches(str(path)).is_on("SoftmaxFusionPass")
    path.write_bytes(b" " * (5 << 20))
    with pytest.raises(FormatError, match="too many"):
        read_switches(str(path))


def test_the_passes_that_are_always_on() -> None:
    """Those of FORMATS.md §7, of which the first, the last and one between."""
    assert len(ALWAYS_ON) == 92
    assert {"AABiasaddConvFusion", "TransdataCastFusionPass", "sedBatchNormGradFusionPass"} < ALWAYS_ON
    assert not is_switchable("PackFusionPass")
    assert is_switchable("SoftmaxFusionPass")
    # As they are registered (FORBIDDEN_CLOSE).
    assert not is_switchable("DeleteNoConstFolding")
    assert not is_switchable("ARefreshCubeC0FusionPass")
