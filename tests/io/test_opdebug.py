"""Overflow status files: payloads built byte by byte, both versions, every bit; decoded files; damaged ones."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from builders import write_dump
from hypothesis import given, settings
from hypothesis import strategies as st
from opdebug_payloads import AIC, AICPU, AIV, MAGIC, SDMA, core_fields, new_payload, old_payload, u32, write_status

from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.io.opdebug import OverflowStatus, UnitStatus, decode_status, document_text, read_opdebug
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError

CORE_BITS = {
    3: "sign-negation",
    4: "integer overflow",
    5: "floating-point overflow",
    7: "negative input in float → unsigned",
    8: "fp32 → fp16",
    10: "Cube accumulation",
}


def words_of(status: UnitStatus) -> tuple[str, ...]:
    return tuple(map(render, status.bits))


def unit(name: str, *status: int) -> UnitStatus:
    return UnitStatus(unit=name, model_id=0, stream_id=0, task_id=0, task_type=0, status=status)


def read_one(path: Path) -> OverflowStatus:
    (status,) = read_opdebug(str(path))
    return status


# --- statuses in words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AI Core", "AIC", "AIV"])
@pytest.mark.parametrize("bit", range(64))
def test_every_bit_of_a_core(name: str, bit: int) -> None:
    (words,) = words_of(unit(name, 1 << bit))
    if bit in CORE_BITS:
        assert CORE_BITS[bit] in words
    else:
        assert f"{1 << bit:#x}" in words
        assert "not documented" in words


def test_all_bits_that_are_set_are_told() -> None:
    words = words_of(unit("AIC", 0x110 | 1 << 40))
    assert [("integer overflow" in text, "fp32 → fp16" in text, "0x10000000000" in text) for text in words] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert words_of(unit("AIC", 0)) == ()
    assert not unit("AIC", 0).is_set


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "overflow"), (2, "underflow"), (3, "source is NaN"), (4, "destination is NaN"),
     (5, "source and destination are NaN")],
)  # fmt: skip
def test_codes_of_the_l2_atomic_add(code: int, words: str) -> None:
    assert words_of(unit("L2 Atomic Add", code << 16)) == (words,)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0x9, "overflow"), (0xA, "underflow"), (0xB, "source is NaN"), (0xC, "destination is NaN"),
     (0xD, "source and destination are NaN")],
)  # fmt: skip
def test_codes_of_the_dha_atomic_add(code: int, words: str) -> None:
    assert words_of(unit("DHA Atomic Add", code << 8)) == (words,)


def test_codes_that_no_document_has() -> None:
    assert words_of(unit("L2 Atomic Add", 7 << 16)) == ("status 0x70000, whose meaning is not documented",)
    assert words_of(unit("DHA Atomic Add", 0x3)) == ("status 0x3, whose meaning is not documented",)
    assert words_of(unit("AICPU", 0x20)) == ("status 0x20, whose meaning is not documented",)


def test_several_words_are_told_apart() -> None:
    first, second = words_of(unit("AIV", 0x20, 0, 0, 0x400))
    assert first == "floating-point overflow (status word 0)"
    assert second == "Cube accumulation overflow (status word 3)"


# --- payloads ---------------------------------------------------------------------------------------------------------


def test_the_old_payload(tmp_path: Path) -> None:
    path = write_status(tmp_path, old_payload(core=0x120, l2=1 << 16, dha=0xB << 8, model=514, stream=563, task=57))
    status = read_one(path)
    info = {"model_id": 514, "stream_id": 563, "task_id": 57, "task_type": 0, "pc_start": "0x1008005b0000",
            "para_base": "0x100800297000"}  # fmt: skip
    assert status.document == {
        "DHA Atomic Add": {**info, "status": 0xB00},
        "L2 Atomic Add": {**info, "status": 0x10000},
        "AI Core": {**info, "kernel_code": "0x1008005ae000", "block_idx": 3, "status": 0x120},
    }
    assert list(status.document["AI Core"]) == [*info, "kernel_code", "block_idx", "status"]
    assert [(one.unit, words_of(one)) for one in status.units] == [
        ("DHA Atomic Add", ("source is NaN",)),
        ("L2 Atomic Add", ("overflow",)),
        ("AI Core", ("floating-point overflow", "overflow in fp32 → fp16 or int32 → fp16")),
    ]
    core = status.units[2]
    assert (core.model_id, core.stream_id, core.task_id, core.context_id, core.thread_id) == (514, 563, 57, None, None)


@pytest.mark.parametrize(("kind", "name"), [(AIC, "AIC"), (AIV, "AIV")])
@pytest.mark.parametrize("version", [0, 1])
def test_the_new_payload_of_cores(tmp_path: Path, kind: int, name: str, version: int) -> None:
    words = [0x20] if version == 0 else [0x20, 0, 0x100, 0]
    fields = core_fields(words, task=12, stream=4, model=7, context=8, thread=9)
    status = read_one(write_status(tmp_path, new_payload(kind, fields, version=version)))
    assert status.notes == ()
    assert status.document == {
        "magic": "0x5a5a5a5a",
        "version": version,
        "acc_list": {
            "valid": 1,
            "acc_type": name,
            "rsv": 0,
            "data_len": 88 if version == 0 else 112,
            "data": {
                "model_id": 7,
                "stream_id": 4,
                "task_id": 12,
                "task_type": 0,
                "context_id": 8,
                "thread_id": 9,
                "pc_start": "0x1000124080041000",
                "para_base": "0x1000124080050000",
                "core_id": 2,
                "block_id": 5,
                "status": 0x20 if version == 0 else words,
            },
        },
    }
    (one,) = status.units
    assert (one.unit, one.task_id, one.stream_id, one.context_id, one.thread_id) == (name, 12, 4, 8, 9)
    assert one.status == tuple(words)


@pytest.mark.parametrize("version", [0, 1])
def test_the_new_payload_of_the_other_units(tmp_path: Path, version: int) -> None:
    """Their status is one word in both versions."""
    cpu = new_payload(AICPU, [1, 2, 3, 1, 65535, 6, 65535, 0x40], version=version)
    data = read_one(write_status(tmp_path, cpu)).document["acc_list"]
    assert (data["acc_type"], data["data_len"]) == ("AICPU", 64)
    assert data["data"] == {
        "model_id": 1, "stream_id": 2, "task_id": 3, "task_type": 1, "context_id": 65535, "cpu_id": 6,
        "thread_id": 65535, "status": 0x40,
    }  # fmt: skip
    sdma = new_payload(SDMA, [1, 2, 3, 4, 5, 6, 0x1000, 0x2000, 7, 0x80], version=version)
    data = read_one(write_status(tmp_path, sdma)).document["acc_list"]
    assert (data["acc_type"], data["data_len"]) == ("SDMA", 80)
    assert data["data"] == {
        "model_id": 1, "stream_id": 2, "task_id": 3, "task_type": 4, "context_id": 5, "thread_id": 6,
        "src_addr": "0x1000", "dst_addr": "0x2000", "channel_id": 7, "status": 0x80,
    }  # fmt: skip


def test_a_context_of_65535_is_none(tmp_path: Path) -> None:
    (one,) = read_one(write_status(tmp_path, new_payload(AIC, core_fields()))).units
    assert (one.context_id, one.thread_id) == (None, None)


def test_what_is_not_as_documented_is_told() -> None:
    document, notes = decode_status(new_payload(AIC, core_fields(), valid=0, data_len=80))
    assert document["acc_list"]["data"]["status"] == 0x20
    assert [note.kind for note in notes] == ["row.io.status_invalid", "row.io.status_length"]
    assert notes[1].length == 80
    # Of versions to come the length tells whether the status is a list.
    for words in ([0x20], [0x20, 0, 0, 0]):
        document, notes = decode_status(new_payload(AIC, core_fields(words), version=2))
        assert document["acc_list"]["data"]["status"] == (words if len(words) > 1 else 0x20)
        assert Message("row.io.status_version", version=2) in notes


def test_a_file_of_version_1_of_the_dump_format(tmp_path: Path) -> None:
    payload = new_payload(AIC, core_fields(task=3))
    path = tmp_path / "Opdebug.Node_OpDebug.1.2.1772443800000000"
    write_dump(path, "Node_OpDebug", [], [OutTensor(data=payload, dtype="uint8", shape=(2048,))], version=1)
    assert read_one(path).units[0].task_id == 3


# --- decoded files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [old_payload(core=8, task=5), new_payload(AIC, core_fields(task=5)),
     new_payload(AIV, core_fields([1, 2, 3, 4], task=5), version=1)],
)  # fmt: skip
def test_a_decoded_file_is_the_same_status(tmp_path: Path, payload: bytes) -> None:
    path = write_status(tmp_path, payload)
    status = read_one(path)
    decoded = tmp_path / f"{path.name}.output.0.json"
    decoded.write_text(document_text(status.document))
    again = read_one(decoded)
    assert again.document == status.document
    assert again.units == status.units
    assert document_text(status.document) == json.dumps(status.document, indent=4)


def test_a_decoded_file_may_have_other_spaces_and_a_list_of_records(tmp_path: Path) -> None:
    record = {"acc_type": "AIC", "data": {"task_id": "0x11", "stream_id": 2, "status": 32}}
    path = tmp_path / "Opdebug.Node_OpDebug.1.2.1772443800000000.output.3.json"
    path.write_text("\n " + json.dumps({"magic": "0x5a5a5a5a", "acc_list": [record, record]}))
    status = read_one(path)
    assert status.output == 3
    assert [(one.task_id, one.stream_id, one.status) for one in status.units] == [(17, 2, (32,))] * 2


# --- damaged ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "0 bytes"),
        (b"\0" * 2047, "2047 bytes"),
        (MAGIC, "within the header"),
        (MAGIC + u32(0, 1, 0, 0), "within the header"),
        (new_payload(AIC, core_fields(), size=0)[:-8], "cut off after 104 bytes"),
        (new_payload(AIC, core_fields([1, 2, 3]), version=1, size=0), "cut off after 128 bytes"),
        (new_payload(9, core_fields()), "acc_type 9"),
    ],
)
def test_damaged_payloads(tmp_path: Path, payload: bytes, words: str) -> None:
    path = write_status(tmp_path, payload)
    with pytest.raises(FormatError, match=words) as caught:
        read_opdebug(str(path))
    assert path.name in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"AI Core": 3}', '{"acc_list": 3}', '{"acc_list": {"data": {"status": -1}}}', '{"AI Core": []}',
     '{"AI Core": {"status": "many"}}', '{"AI Core": {"status": 1e3}}', '{"AI Core": {"task_id": true}}',
     '{"a":' * 3000],
)  # fmt: skip
def test_damaged_decoded_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "Opdebug.Node_OpDebug.1.2.1772443800000000.output.0.json"
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        read_opdebug(str(path))
    assert caught.value.hint


def test_what_is_no_status_at_all(tmp_path: Path) -> None:
    path = tmp_path / "Opdebug.Node_OpDebug.1.2.1772443800000000"
    with pytest.raises(DataNotFoundError):
        read_opdebug(str(path))
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="empty"):
        read_opdebug(str(path))
    write_dump(path, "Node_OpDebug", [OutTensor(data=b"\0" * 8, dtype="uint8", shape=(8,))], [])
    with pytest.raises(FormatError, match="without outputs"):
        read_opdebug(str(path))
    write_dump(path, "Node_OpDebug", [], [OutTensor(data=b"\0" * (2 << 20), dtype="uint8", shape=(2 << 20,))])
    with pytest.raises(FormatError, match="not an overflow status"):
        read_opdebug(str(path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="cannot be read"):
        read_opdebug(str(path))
    path.write_text("{" + " " * (2 << 20) + "}")
    with pytest.raises(FormatError, match="too many"):
        read_opdebug(str(path))


#: Any JSON document with the words of a status.
words = st.sampled_from(["acc_list", "AI Core", "data", "status", "acc_type", "task_id", "AIC", "0x1", "x"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(data=st.data())
def test_garbage_is_the_users_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever is in a file, it is read or refused with a reason."""
    folder = tmp_path_factory.mktemp("garbage")
    payload = bytearray(data.draw(st.sampled_from([old_payload(core=1), new_payload(AIC, core_fields(), size=112)])))
    for place in data.draw(st.lists(st.integers(0, len(payload) - 1), max_size=4)):
        payload[place] = data.draw(st.integers(0, 255))
    text = json.dumps(data.draw(documents)).encode()
    for path, content in (
        (write_status(folder, bytes(payload)), None),
        (folder / "Opdebug.Node_OpDebug.1.2.1772443800000000.output.0.json", text),
        (folder / "Opdebug.Node_OpDebug.3.4.1772443800000000", data.draw(st.binary(max_size=60))),
    ):
        if content is not None:
            path.write_bytes(content)
        with suppress(FormatError):
            for status in read_opdebug(str(path)):
                assert all(render(bit) for unit in status.units for bit in unit.bits)
