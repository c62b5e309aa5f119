"""What a user says about how a run is split: a JSON file for what shapes and values do not tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from precision_tool.lib.data.sharding import Placement, Split
from precision_tool.lib.io.files import read_bytes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError

_KEYS = frozenset({"tensors", "modules", "micro_batches"})
_RULES = frozenset({"tensor", "axis", "parts", "stride", "groups", "sum", "flat", "copy", "order"})
_MAX_PARTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the tensors whose names fit a pattern are split. Without `parts` there are as many as ranks."""

    tensor: str
    axes: tuple[int, ...] = ()
    parts: int = 0
    stride: int = 1
    groups: int = 1
    is_sum: bool = False
    is_flat: bool = False
    order: tuple[int, ...] = ()

    def placement(self, members: int) -> Placement:
        """Return the placement for so many ranks."""
        parts = self.parts or members
        if self.is_sum:
            return Placement(terms=parts, stride=self.stride, order=self._order(members))
        splits = tuple(
            Split(axis, parts, self.stride, self.groups) for axis in self.axes or ((0,) if self.is_flat else ())
        )
        return Placement(splits=splits, is_flat=self.is_flat, order=self._order(members))

    def _order(self, members: int) -> tuple[int, ...]:
        return self.order if sorted(self.order) == list(range(members)) else ()


@dataclass(frozen=True, kw_only=True)
class ShardMap:
    """The file: rules for tensors, by how much ranks number modules lower, and the parts of the batch of each side."""

    path: str = ""
    rules: Sequence[Rule] = ()
    modules: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    parts: tuple[int, int] | None = None

    def rule_of(self, name: str) -> Rule | None:
        """Return the first rule for a tensor."""
        return next((rule for rule in self.rules if fnmatchcase(name, rule.tensor)), None)

    def offsets_of(self, rank: int) -> dict[str, int]:
        """Return by how much a rank numbers its modules lower, by the masked path before the number."""
        return dict(self.modules.get(rank, {}))


def read_shard_map(path: str) -> ShardMap:
    """Read a file that says how a run is split.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    FormatError
        It is no JSON, or has a member that is not understood.
    """
    try:
        document = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise FormatError.of(path, "data.shard_map.json", reason=str(error)[:200]) from None
    if not isinstance(document, dict):
        raise _wrong(path, "", Message("row.data.shard_map.object"))
    for key in document:
        if key not in _KEYS:
            raise _wrong(path, key, Message("row.data.shard_map.unknown", names=sorted(_KEYS)))
    return ShardMap(
        path=path,
        rules=tuple(_rule(path, f"tensors[{at}]", each) for at, each in enumerate(_list(path, document, "tensors"))),
        modules=_modules(path, document.get("modules", {})),
        parts=_parts(path, document.get("micro_batches")),
    )


def _wrong(path: str, key: str, reason: Message) -> FormatError:
    return FormatError.of(path, "data.shard_map.member", key=key or "{}", reason=reason)


def _list(path: str, document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key, [])
    if not isinstance(value, list):
        raise _wrong(path, key, Message("row.data.shard_map.list"))
    return value


def _whole(path: str, key: str, value: Any, low: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _MAX_PARTS:
        raise _wrong(path, key, Message("row.data.shard_map.number", low=low))
    return value


def _rule(path: str, place: str, value: Any) -> Rule:
    if not isinstance(value, dict) or not isinstance(value.get("tensor"), str):
        raise _wrong(path, place, Message("row.data.shard_map.rule"))
    for key in value:
        if key not in _RULES:
            raise _wrong(path, f"{place}.{key}", Message("row.data.shard_map.unknown", names=sorted(_RULES)))
    axes = value.get("axis", [])
    order = value.get("order", [])
    flags = {key: value.get(key, False) for key in ("sum", "flat", "copy")}
    if any(not isinstance(flag, bool) for flag in flags.values()):
        raise _wrong(path, place, Message("row.data.shard_map.flag"))
    if not isinstance(order, list):
        raise _wrong(path, f"{place}.order", Message("row.data.shard_map.list"))
    axes = axes if isinstance(axes, list) else [axes]
    return Rule(
        tensor=value["tensor"],
        axes=tuple(_whole(path, f"{place}.axis", axis, 0) for axis in axes),
        parts=_whole(path, f"{place}.parts", value["parts"]) if "parts" in value else 0,
        stride=_whole(path, f"{place}.stride", value.get("stride", 1)),
        groups=_whole(path, f"{place}.groups", value.get("groups", 1)),
        is_sum=flags["sum"],
        is_flat=flags["flat"],
        order=tuple(_whole(path, f"{place}.order", number, 0) for number in order),
    )


def _modules(path: str, value: Any) -> dict[int, dict[str, int]]:
    if not isinstance(value, dict):
        raise _wrong(path, "modules", Message("row.data.shard_map.object"))
    modules: dict[int, dict[str, int]] = {}
    for above, by_rank in value.items():
        if not isinstance(by_rank, dict):
            raise _wrong(path, f"modules.{above}", Message("row.data.shard_map.object"))
        for rank, offset in by_rank.items():
            if not (rank.isascii() and rank.isdecimal()):
                raise _wrong(path, f"modules.{above}.{rank}", Message("row.data.shard_map.number", low=0))
            modules.setdefault(int(rank), {})[above] = _whole(path, f"modules.{above}.{rank}", offset, 0)
    return modules


def _parts(path: str, value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise _wrong(path, "micro_batches", Message("row.data.shard_map.pair"))
    return _whole(path, "micro_batches", value[0]), _whole(path, "micro_batches", value[1])
