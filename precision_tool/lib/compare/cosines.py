"""The cosines of the newest result by op, for those who only want to know how an op came out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isnan

from precision_tool.lib.compare.result_csv import read_output_cosines
from precision_tool.lib.discover.names import flatten
from precision_tool.lib.formats.cache_files import CacheFiles
from precision_tool.lib.formats.files import signature_of

#: To be raised with every change of what is kept.
_VERSION = 1


class Cosines(Mapping[str, float]):
    """Op name → cosine; a name is also found where one side spells it with `/` and the other with `_`."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)
        self._flat = {flatten(name): value for name, value in self._values.items()}

    def __getitem__(self, name: str) -> float:
        known = self._values.get(name)
        return self._flat[flatten(name)] if known is None else known

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def output_cosines(paths: Sequence[str], cache: CacheFiles) -> Cosines:
    """The lowest cosine of the outputs of each op in some result files, NaN lowest of all."""
    lowest: dict[str, float] = {}
    for path in paths:
        for name, cosine in _of_file(path, cache).items():
            known = lowest.get(name, cosine)
            lowest[name] = known if isnan(known) or known <= cosine else cosine
    return Cosines(lowest)


def _of_file(path: str, cache: CacheFiles) -> dict[str, float]:
    signature = signature_of(path)
    if signature is None:
        return read_output_cosines(path)  # which says what is wrong
    payload = cache.read(path, signature, _VERSION)
    known = None if payload is None else _decoded(payload)
    if known is None:
        known = read_output_cosines(path)
        cache.write(path, signature, _VERSION, json.dumps(known).encode())
    return known


def _decoded(payload: bytes) -> dict[str, float] | None:
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or any(type(value) is not float for value in values.values()):
        return None
    return values
