"""Attributes of offline models whose names and texts are numbers of two lists in the model (`om_compress_version` 1).

A name that begins with a zero byte is a number to base 127, least digit first, each digit a byte one above it; it
counts in `attr_name_enum`. Where `attrs_use_string_value` has true for that name, the value is a number, or a list of
numbers, that count in `attr_value_enum`. Source: GE's ModelCompressManager, EnumAttrUtils and Pb2Json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_VERSION, _NAMES, _TEXTS, _IS_TEXT = (
    b"om_compress_version", b"attr_name_enum", b"attr_value_enum", b"attrs_use_string_value"
)  # fmt: skip
_KNOWN_VERSION = 1
_BASE = 127
#: Digits of a number in a name; no list is as long as more of them count.
_MAX_DIGITS = 8

_Tree = dict[str, list[Any]]


def restore_attributes(root: _Tree) -> str:
    """Gives the attributes of a ModelDef's tree their names and texts, and takes the lists out of it.

    Returns what to say of attributes that could not be restored, empty without any.
    """
    lists = {key: value for key, value in _entries(root) if key in (_VERSION, _NAMES, _TEXTS, _IS_TEXT)}
    if not lists:
        return ""
    root["attr"] = [entry for entry in root["attr"] if _key(entry) not in lists]
    if not root["attr"]:
        del root["attr"]
    version = _last(lists.get(_VERSION), "i")
    if version is None:  # the lists alone mean nothing, to GE as well
        return ""
    if version != _KNOWN_VERSION:
        return f"its attributes are written in a way that is not known (om_compress_version {version})"
    names, texts, is_text = (
        _listed(lists.get(key), field) for key, field in ((_NAMES, "s"), (_TEXTS, "s"), (_IS_TEXT, "b"))
    )
    lost = sum(not _restore(entry, names, texts, is_text) for node in _nodes(root) for entry in node.get("attr", ()))
    return f"{lost} of its attributes are numbers beyond the lists of the model, and left out" if lost else ""


def _nodes(root: _Tree) -> Iterator[_Tree]:
    """The messages of a tree that have attributes, whatever their depth; those of unknown names are taken out."""
    waiting: list[_Tree] = [root]
    while waiting:
        node = waiting.pop()
        if "attr" in node:
            yield node
            node["attr"] = [entry for entry in node["attr"] if not _key(entry).startswith(b"\0")]
        waiting += (item for items in node.values() for item in items if isinstance(item, dict))


def _entries(node: _Tree) -> Iterator[tuple[bytes, _Tree]]:
    for entry in node.get("attr", ()):
        value = _last(entry, "value")
        yield _key(entry), value if isinstance(value, dict) else {}


def _key(entry: Any) -> bytes:
    key = _last(entry, "key")
    return key if isinstance(key, bytes) else b""


def _last(node: Any, field: str) -> Any:
    values = node.get(field) if isinstance(node, dict) else None
    return values[-1] if values else None


def _listed(value: _Tree | None, field: str) -> list[Any]:
    found = _last(value, "list")
    return found.get(field, []) if isinstance(found, dict) else []


def _restore(entry: _Tree, names: Sequence[bytes], texts: Sequence[bytes], is_text: Sequence[bool]) -> bool:
    """Gives one entry its name and texts; False where the lists do not have them."""
    key = _key(entry)
    if not key.startswith(b"\0"):
        return True
    number = sum((digit - 1) * _BASE**place for place, digit in enumerate(key[1 : _MAX_DIGITS + 1]))
    if len(key) - 1 > _MAX_DIGITS or not 0 <= number < min(len(names), len(is_text)):
        return False
    value = _last(entry, "value")
    if is_text[number] and isinstance(value, dict):
        holder = value if "i" in value else _last(value, "list")
        if isinstance(holder, dict):
            numbers = holder.pop("i", [])
            if not all(isinstance(one, int) and 0 <= one < len(texts) for one in numbers):
                return False
            if numbers:
                holder["s"] = [texts[one] for one in numbers]
            if "val_type" in holder:
                holder["val_type"] = ["VT_LIST_STRING"]
    entry["key"] = [names[number]]
    return True
