"""The profile of a device: its screen, its JSON, and what it comes to, which the report says too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.device_profile import DeviceProfile, SumOrder, TypePrecision
from precision_tool.lib.diagnose.stored_profile import OVERFLOW
from precision_tool.lib.messages import Message, render
from precision_tool.lib.ops.base import Kind
from precision_tool.lib.view.tables import NUMBERS, Box, NameTable, Prose
from precision_tool.lib.view.text import LabelledLines, Line, json_text, label, plain, safe, shown, whole_path

_COLUMN = "screen.view.profile.column"
#: Types that a conclusion names.
_NAMED = 3
#: Kinds of ops whose kernels a precision mode chooses.
_CHOSEN = (Kind.APPROXIMATE, Kind.COMPOSITE)


def imprecise_types(profile: DeviceProfile) -> list[TypePrecision]:
    """Return the types that miss the vendor's acceptance rule, the farthest first."""
    missing = [entry for entry in profile.types if not entry.is_accepted]
    return sorted(missing, key=lambda entry: -entry.imprecision / entry.accepted)


def in_order(profile: DeviceProfile) -> list[TypePrecision]:
    """Return the types by how far they are off, in units of what the vendor accepts; those that are exact last."""
    return sorted(profile.types, key=lambda entry: (-entry.imprecision / entry.accepted, -entry.own, entry.op_type))


def power(value: float) -> str:
    """Return a relative error as a power of two, 2^-11.3; "0" for none."""
    return f"2^{log2(value):.1f}" if value > 0 else "0"


def flag_messages(entry: TypePrecision) -> list[Message]:
    """Return what the errors of a type tell of how it is computed."""
    names = ["hf32"] if entry.is_hf32 else []
    if entry.order is not None:
        names.append(entry.order.value)
    return [Message(f"screen.view.profile.flag.{name}") for name in names]


def conclusions(profile: DeviceProfile) -> list[Message]:
    """Return what the profile comes to, the heaviest first."""
    missing = imprecise_types(profile)
    total = len(profile.types)
    if not total:
        return [Message("screen.view.profile.nothing")]
    if missing:
        named = [
            Message(
                "screen.view.profile.to", type=safe(entry.op_type), dtype=entry.dtype, power=power(entry.imprecision)
            )
            for entry in missing[:_NAMED]
        ]
        more = len(missing) - _NAMED if len(missing) > _NAMED else None
        lines = [Message("screen.view.profile.missed", missed=len(missing), types=total, named=named, more=more)]
    else:
        lines = [Message("screen.view.profile.accepted", types=total)]
    if any(entry.kind in _CHOSEN for entry in missing):
        lines.append(Message("screen.view.profile.raise"))
    products = [safe(entry.op_type) for entry in profile.types if entry.is_hf32]
    if products:
        lines.append(Message("screen.view.profile.hf32", named=products[:_NAMED], more=len(products) > _NAMED))
    coarse = [safe(entry.op_type) for entry in profile.types if entry.order is SumOrder.COARSE]
    if coarse:
        lines.append(Message("screen.view.profile.coarse", named=coarse[:_NAMED], more=len(coarse) > _NAMED))
    if profile.flushes:
        lines.append(Message("screen.view.profile.flushes", dtypes=list(profile.flushes)))
    if profile.mode.get(OVERFLOW) in ("saturate", "inf_nan"):
        lines.append(Message(f"screen.view.profile.overflow.{profile.mode[OVERFLOW]}"))
    return lines


def profile_lines(profile: DeviceProfile, paths: Sequence[str], limit: int) -> Iterator[RenderableType]:
    """Yield the screen: what it is of, the table, and in a box what it comes to."""
    yield LabelledLines(list(_heading(profile, paths)))
    entries = in_order(profile)
    if entries:
        yield _table(entries[: limit or None])
    if limit and len(entries) > limit:
        yield shown(Message("screen.view.profile.some", shown=limit, total=len(entries)), "dim")
    lines = [Prose(shown(line, "" if number else "bold")) for number, line in enumerate(conclusions(profile))]
    style = "green" if profile.types and not imprecise_types(profile) else "yellow"
    yield Box(Group(*lines), title=shown(Message("screen.view.profile.title")), style=style, box=box.HEAVY)


def _heading(profile: DeviceProfile, paths: Sequence[str]) -> Iterator[Line]:
    yield label("device"), shown(device_message(profile))
    if profile.mode:
        yield label("mode"), plain(safe(", ".join(f"{name}={value}" for name, value in sorted(profile.mode.items()))))
    yield label("learned_from"), shown(Message("screen.view.profile.runs", runs=profile.runs))
    for path in paths:
        yield label("file"), whole_path(path)


def device_message(profile: DeviceProfile) -> Message | str:
    """Return the device's name, or that it is unknown."""
    return safe(profile.device) if profile.device else Message("screen.view.profile.unknown")


def _table(entries: Sequence[TypePrecision]) -> NameTable:
    table = NameTable(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_columns(_COLUMN, "ops", "float32", "own", "imprecision", "relative", "accepted", **NUMBERS)
    table.add_columns(_COLUMN, "dtype", "flags", no_wrap=True)
    table.add_columns(_COLUMN, "type")
    for entry in entries:
        style = "" if entry.is_accepted else "yellow"
        mark = "✓" if entry.is_accepted else "✗"
        table.add_row(
            str(entry.ops), power(entry.float32), power(entry.own), Text(power(entry.imprecision), style),
            f"{entry.imprecision:.2g}", Text(f"{mark} {entry.accepted:g}", style), dtypes_of(entry),
            ", ".join(map(render, flag_messages(entry))), plain(safe(entry.op_type)),
        )  # fmt: skip
    return table


def dtypes_of(entry: TypePrecision) -> str:
    """Return the types of inputs and output, where they differ both."""
    both = entry.input_dtype and entry.input_dtype != entry.dtype
    return f"{entry.input_dtype} → {entry.dtype}" if both else entry.dtype


def profile_document(profile: DeviceProfile) -> dict[str, Any]:
    """Return the profile as JSON has it, here and in the report; conclusions are messages."""
    return {
        "device": profile.device or None, "mode": dict(profile.mode), "runs": profile.runs,
        "flushes": list(profile.flushes), "missed": len(imprecise_types(profile)),
        "conclusion": conclusions(profile), "types": [_entry(entry) for entry in in_order(profile)],
    }  # fmt: skip


def _entry(entry: TypePrecision) -> dict[str, Any]:
    return {
        "type": entry.op_type, "input_dtype": entry.input_dtype or None, "dtype": entry.dtype,
        "kind": entry.kind.value, "ops": entry.ops, "float32": entry.float32, "allowed": entry.rounding,
        "own": entry.own, "imprecision": entry.imprecision, "largest": entry.imprecisions[-1],
        "acceptance": entry.accepted, "accepted": entry.is_accepted, "hf32": entry.is_hf32,
        "sums": None if entry.order is None else entry.order.value, "computed": flag_messages(entry),
        "curve": [list(point) for point in entry.curve],
    }  # fmt: skip


def profile_json(profile: DeviceProfile, paths: Sequence[str]) -> str:
    """Return the JSON of the screen."""
    return json_text({"files": [shown_path(path) for path in paths], **profile_document(profile)})
