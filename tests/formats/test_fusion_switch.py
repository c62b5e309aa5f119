"""The grammar of fusion switch files: what is understood, what is refused with which line, what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_tool import tf_config
from precision_tool.lib.errors import DataNotFoundError, FormatError
from precision_tool.lib.formats.fusion_passes import ALWAYS_ON, GRAPH, SECTIONS, UB, is_switchable, section_of
from precision_tool.lib.formats.fusion_switch import (
    ALL,
    EITHER,
    SHIPPED_OFF,
    SHIPPED_SWITCH,
    Switches,
    parse_switches,
    read_switches,
    render,
)

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
    st.dictionaries(st.just("Priority"), st.dictionaries(names, st.dictionaries(names, st.integers(0, 9)))),
)
line_switches = passes.filter(bool).map(lambda found: Switches(sections={EITHER: found}, is_old_form=True))


def parts(switches: Switches) -> object:
    sections = {name: dict(found) for name, found in switches.sections.items()}
    return sections, dict(switches.others), switches.is_old_form


@given(json_switches | line_switches)
def test_what_is_written_is_read_back(switches: Switches) -> None:
    again = parse_switches(render(switches))
    assert parts(again) == parts(switches)
    assert again.notes == ()


@given(json_switches)
def test_what_is_written_is_strict_json(switches: Switches) -> None:
    document = json.loads(render(switches))
    assert set(document) == {"Switch", *switches.others}
    assert set(document["Switch"]) == set(SECTIONS)
    for section, found in document["Switch"].items():
        assert {name: word == "on" for name, word in found.items()} == switches.sections[section]


@given(json_switches, st.data())
def test_comments_and_trailing_commas_change_nothing(switches: Switches, data: st.DataObject) -> None:
    tokens = re.findall(r'"[^"]*"|[{}\[\]:,]|\d+', render(switches))
    filling = st.sampled_from(["", " ", "\n", "// why\n", "/* two\nlines */", "# also\n"])
    text = "".join(
        data.draw(filling)
        + token
        + ("," if follower in "}]" and token not in "{[," and data.draw(st.booleans()) else "")
        for token, follower in zip(tokens, [*tokens[1:], "end"], strict=True)
    )
    again = parse_switches(text)
    assert parts(again) == parts(switches)
    assert bool(again.notes) == (re.sub(r"\s", "", text) != re.sub(r"\s", "", render(switches)))


@given(st.text(st.sampled_from('{}[]":,onfAL/*#\\ \n\t01.-Switch'), max_size=60) | st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        switches = parse_switches(text, "file.cfg")
    except FormatError as error:
        assert re.match(r"file\.cfg line \d+: .", error.message)  # noqa: PT017
        assert error.hint  # noqa: PT017
    else:
        assert parts(parse_switches(render(switches))) is not None


@given(json_switches, st.sampled_from(SECTIONS), names, st.booleans())
def test_every_doubled_name_is_refused(switches: Switches, section: str, name: str, on: bool) -> None:
    """GE refuses a file with the same name twice, whatever the values."""
    once = switches.with_pass(name, on, section)
    place = next(where for where in SECTIONS if name in once.sections[where])
    lines = render(once).splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if f'"{place}"' in line)
    first = next(number for number in range(start, len(lines)) if lines[number].startswith(f'      "{name}": "o'))
    doubled = [*lines[: first + 1], *lines[first:]]
    doubled[first] = f'      "{name}": "on",\n'
    with pytest.raises(FormatError, match=rf"line {first + 2}: '{name}' stands in line {first + 1} too"):
        parse_switches("".join(doubled))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "is no"),
        ("[]", 1, "the file is no object"),
        ('"text"', 1, "the file is no object"),
        ("{}", 1, "there is no member 'Switch'"),
        ('{"Switch": []}', 1, "'Switch' is no object"),
        ('{"Switch": {"GraphFusion": "off"}}', 1, "'GraphFusion' is no object"),
        ('{"Switch": {\n"Fusion": {}}}', 2, "unknown section 'Fusion'; known are GraphFusion and UBFusion"),
        ('{\n"Swich": {}}', 2, "unknown member 'Swich'"),
        ('{"Switch": {"GraphFusion": {\n"A": "off",\n"B": "Off"}}}', 3, 'B: "Off" is neither "on" nor "off"'),
        ('{"Switch": {"GraphFusion": {"A": false}}}', 1, "A: false is neither"),
        ('{"Switch": {"GraphFusion": {"A": off}}}', 1, "'off' is no JSON value; texts stand in double quotes"),
        ('{"Switch": {"GraphFusion": {A: "off"}}}', 1, "a name in double quotes is missing before 'A'"),
        ('{"Switch": {"GraphFusion": {"A" "off"}}}', 1, "a colon is missing after 'A'"),
        ('{"Switch": {"GraphFusion": {"A": "on"\n"B": "on"}}}', 2, "a comma or } is missing before '\"B\"'"),
        ('{"Switch": {"GraphFusion": {"A":}}}', 1, "a value is missing before '}'"),
        ('{"Switch": {}', 1, "a comma or } is missing before the end of the file"),
        ('{"Switch": {}}\n}', 2, "'}' after the end of the document"),
        ('{"Switch": {}} {"Switch": {}}', 1, "after the end"),
        ('{"Switch": {}, "Priority": ' + "[" * 70 + "]" * 70 + "}", 1, "nested too deeply"),
        ('{"Switch": {"GraphFusion": {"\\q": "on"}}}', 1, "an unknown escape"),
        ('{"Switch": {}, "Priority": NaN}', 1, "'NaN' is no JSON value"),
        ("APass:on\nBPass", 2, "is neither JSON nor a line PASS:on or PASS:off"),
        ("APass:on\nBPass:yes", 2, "BPass: 'yes' is neither on nor off"),
        ("APass:on\n\nAPass:off", 3, "'APass' stands in line 1 too"),
        ("A Pass:on", 1, "is neither JSON nor"),
        ("Switch{}", 1, "is neither JSON nor"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    if not text:
        assert parts(parse_switches(text)) == ({EITHER: {}}, {}, True)  # the old form with no line
        return
    with pytest.raises(FormatError) as caught:
        parse_switches(text, "f.cfg")
    assert caught.value.message.startswith(f"f.cfg line {line}: ")
    assert words in caught.value.message


def test_the_documented_files() -> None:
    documented = parse_switches(DOCUMENTED)
    assert documented.notes == ("line 4: a comma after the last member, which GE does not understand",)
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
    assert old.notes == ("line 3: a comment, which GE does not understand",)


def test_a_named_pass_beats_all_and_nothing_named_is_on() -> None:
    switches = Switches(sections={GRAPH: {ALL: False, "A": True}, UB: {"B": False}})
    assert [switches.is_on(name, GRAPH) for name in ("A", "B", "C")] == [True, False, False]
    assert [switches.is_on(name, UB) for name in ("A", "B", "C")] == [True, False, True]
    # Without a section: where the pass is named, or where its name belongs.
    assert [switches.is_on(name) for name in ("A", "B", "C", "TbeC")] == [True, False, False, True]
    assert Switches().is_on("A")


@given(json_switches | line_switches, names, st.booleans(), st.sampled_from(SECTIONS))
def test_a_pass_is_what_it_was_switched_to(switches: Switches, name: str, on: bool, section: str) -> None:
    changed = switches.with_pass(name, on, section)
    if name != ALL:
        assert changed.is_on(name) is on
        named = [where for where, one, _ in switches.named() if one == name]
        assert [where for where, one, _ in changed.named() if one == name] == (
            [EITHER] if switches.is_old_form else named or [section]
        )
    others = [one for one in switches.named() if one[1] != name]
    assert [one for one in changed.named() if one[1] != name] == others


@given(json_switches | line_switches, names.filter(lambda name: name != ALL))
def test_all_off_is_all_off(switches: Switches, name: str) -> None:
    off = switches.all_off()
    assert not any(off.is_on(name, section) for section in (None, *SECTIONS))
    assert off.others == switches.others
    assert off.is_old_form == switches.is_old_form


def test_what_is_shipped_is_in_the_files() -> None:
    for path, shipped in ((tf_config.FUSION_OFF_FILE, SHIPPED_OFF), (tf_config.FUSION_SWITCH_FILE, SHIPPED_SWITCH)):
        assert Path(path).read_text("ascii") == render(shipped)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "fusion.cfg"
    with pytest.raises(DataNotFoundError):
        read_switches(str(path))
    path.write_bytes(b'{"Switch":\n{"\xff": {}}}')
    with pytest.raises(FormatError, match="line 2: no UTF-8 text"):
        read_switches(str(path))
    path.write_bytes(b"\xef\xbb\xbf" + ALL_BUT_ONE.encode())
    assert read_switches(str(path)).is_on("SoftmaxFusionPass")
    path.write_bytes(b" " * (5 << 20))
    with pytest.raises(FormatError, match="too many"):
        read_switches(str(path))


def test_the_passes_that_are_always_on() -> None:
    """Those of FORMATS.md §7, of which the first, the last and one between."""
    assert len(ALWAYS_ON) == 90
    assert {"AABiasaddConvFusion", "TransdataCastFusionPass", "sedBatchNormGradFusionPass"} < ALWAYS_ON
    assert not is_switchable("PackFusionPass")
    assert is_switchable("SoftmaxFusionPass")
    assert section_of("TbeConvDequantVaddReluQuantFusionPass") == UB
    assert section_of("SoftmaxFusionPass") == GRAPH
