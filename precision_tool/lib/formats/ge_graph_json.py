"""GE graphs as `atc --mode=5` writes them in JSON, brought into the shape of the text parser's tree.

Every field becomes a list of values and an emptied message (`null`) an empty dict; a field with an empty list is as
one that is not there, as in protobuf. So one builder serves both. What differs is how scalars are written;
`JsonScalars` knows that.
"""

from __future__ import annotations

import json
import re
from typing import Any

from precision_tool.lib.errors import FormatError, shown
from precision_tool.lib.formats.proto_text import int_of_64_bits, not_utf8_notes, paused_gc, refuse_nul_bytes, unescape

_HINT = "convert the graph again: atc --mode=5 --om=ge_proto_*_Build.txt --json=OUT.json"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_graph_json(data: bytes, source: str) -> tuple[dict[str, list[Any]], tuple[str, ...]]:
    """The tree of a JSON text and notes about the file; values are dicts like the root or JSON scalars.

    Raises `FormatError` with line and byte offset when it is cut off or malformed, or is no JSON object.
    """
    refuse_nul_bytes(data, source)
    notes = not_utf8_notes(data)
    text = data.decode("utf-8-sig", "surrogateescape")
    if notes:
        # A byte that is not UTF-8 is shown as \xNN, which is also the C escape that bytes fields hold.
        text = _LONE_SURROGATE.sub(lambda match: rf"\\x{ord(match[0]) - 0xDC00:02x}", text)
    try:
        with paused_gc():
            root = json.loads(text, object_hook=_as_fields, strict=False)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        cut_off = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
        reason = f"the JSON is cut off ({error.msg})" if cut_off else f"not valid JSON: {error.msg}"
        raise FormatError.of(source, f"line {error.lineno}, byte {offset}: {reason}", _HINT, offset=offset) from None
    except ValueError:  # Python converts no number of more than some thousand digits
        raise FormatError.of(source, "a number in this JSON has thousands of digits", _HINT) from None
    except RecursionError:
        raise FormatError.of(source, "the JSON is nested too deep for a graph", _HINT) from None
    if not isinstance(root, dict):
        raise FormatError.of(source, f"this JSON is a {type(root).__name__}, not a GE graph", _HINT)
    return root, notes


def _as_fields(fields: dict[str, Any]) -> dict[str, list[Any]]:
    return {
        key: [{} if item is None else item for item in value]
        if type(value) is list
        else [{} if value is None else value]
        for key, value in fields.items()
        if value != []
    }


class JsonScalars:
    """Scalars of the JSON: strings are strings, but bytes are C-escaped and some numbers are strings."""

    def text(self, value: Any) -> str:
        """A string field."""
        if isinstance(value, str):
            # A lone surrogate, legal in JSON, could not be printed.
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
        if isinstance(value, (int, float)):
            return str(value)
        raise FormatError.within(f"{_shown(value)} where a string was expected", _HINT)

    def bytes_text(self, value: Any) -> str:
        """A bytes field that holds text."""
        text = self.text(value)
        return self.data(value).decode("utf-8", "backslashreplace") if "\\" in text else text

    def data(self, value: Any) -> bytes:
        """A bytes field."""
        return unescape(self.text(value).encode("utf-8").decode("latin-1"))

    def listed_data(self, value: Any) -> bytes:
        """A bytes field in a list, which the vendor does not escape."""
        return self.text(value).encode("utf-8")

    def integer(self, value: Any) -> int:
        """A whole number, also written as a string."""
        try:
            if isinstance(value, (int, str)) or (isinstance(value, float) and value.is_integer()):
                return int_of_64_bits(int(value))
        except ValueError:
            pass
        raise FormatError.within(f"{_shown(value)} where a whole number was expected", _HINT)

    def number(self, value: Any) -> float:
        """A number, also written as a string."""
        try:
            if isinstance(value, (int, float, str)):
                return float(value)
        except (ValueError, OverflowError):
            pass
        raise FormatError.within(f"{_shown(value)} where a number was expected", _HINT)

    def boolean(self, value: Any) -> bool:
        """true or false, also as 0 and 1 or in a string."""
        known = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
        if known is None:
            raise FormatError.within(f"{_shown(value)} where true or false was expected", _HINT)
        return known

    def word(self, value: Any) -> str:
        """The name of an enum value, or its number when the writer knew no name."""
        return self.text(value)

    def guess(self, value: Any) -> Any:
        """A scalar of a field that is not known."""
        return self.text(value) if isinstance(value, str) else value


def _shown(value: Any) -> str:
    return "a block" if isinstance(value, (dict, list)) else shown(str(value))
