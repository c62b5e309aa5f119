"""Why an op was not recomputed, or not judged: a kind and what it is about. The words are in `present.reasons`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from enum import StrEnum
from typing import Any

Shape = tuple[int, ...]


class Why(StrEnum):
    """The kind of a reason. `present.reasons` says for each which fields of a `Reason` it has."""

    # --- what is known of the op ---
    NO_FORMULA = "no_formula"
    #: There is one, but not with this value of an attribute.
    NO_VARIANT = "no_variant"
    UNDOCUMENTED = "undocumented"

    # --- its attributes ---
    NO_ATTRIBUTE = "no_attribute"
    #: Neither as attribute nor as input.
    NOT_GIVEN = "not_given"
    NO_SIZE = "no_size"
    NOT_WHOLE = "not_whole"
    NOT_NUMBER = "not_number"
    NOT_WHOLE_NUMBERS = "not_whole_numbers"
    NOT_SINGLE = "not_single"
    NOT_ALLOWED = "not_allowed"
    EXCLUSIVE = "exclusive"
    #: One thing is named twice.
    TWICE = "twice"
    OUT_OF_RANGE = "out_of_range"
    OUT_OF_SHAPE = "out_of_shape"
    CUTS_OUTSIDE = "cuts_outside"
    AXES_OF_SPACE = "axes_of_space"
    OVER_CHANNELS = "over_channels"
    WINDOW = "window"
    #: An attribute does not fit shapes, or the number of inputs.
    VALUE_MISFIT = "value_misfit"
    VALUE_INPUTS = "value_inputs"

    # --- its inputs ---
    NOT_CONNECTED = "not_connected"
    #: There is no formula for so many, or there have to be others.
    INPUT_COUNT = "input_count"
    INPUTS_EXPECTED = "inputs_expected"
    DATA_TYPE = "data_type"
    TYPES_DIFFER = "types_differ"
    NO_CONVERSION = "no_conversion"
    NEGATIVE_POWER = "negative_power"
    SHAPE = "shape"
    SHAPE_EXPECTED = "shape_expected"
    SHAPE_ROWS = "shape_rows"
    SHAPE_MISFIT = "shape_misfit"
    SHAPES_MISFIT = "shapes_misfit"
    TYPED_MISFIT = "typed_misfit"
    FILTER_MISFIT = "filter_misfit"
    GROUPS_MISFIT = "groups_misfit"
    COUNT_MISFIT = "count_misfit"
    AXIS_COUNT = "axis_count"
    AXIS_DIFFERS = "axis_differs"
    NO_MULTIPLE = "no_multiple"
    NO_BROADCAST = "no_broadcast"
    NO_PRODUCT = "no_product"
    SHAPES_DIFFER = "shapes_differ"
    NO_SHAPE = "no_shape"
    NOT_HELD = "not_held"
    EMPTY = "empty"
    NOT_FINITE = "not_finite"
    UNSORTED = "unsorted"
    CONTRADICTION = "contradiction"

    # --- its result ---
    #: What it gives hangs on an order or on rounding.
    UNORDERED = "unordered"
    INDEX_TWICE = "index_twice"
    TIED = "tied"
    AT_THRESHOLD = "at_threshold"
    NO_OUTPUT_SHAPE = "no_output_shape"
    OTHER_THAN_GRAPH = "other_than_graph"
    OTHER_THAN_DUMPED = "other_than_dumped"
    OUTPUT_WITHOUT_FORMULA = "output_without_formula"
    OUTPUTS_WITHOUT_FORMULA = "outputs_without_formula"
    NO_DUMPED_OUTPUT = "no_dumped_output"
    NOWHERE_FINITE = "nowhere_finite"
    ROUNDING_UNKNOWN = "rounding_unknown"

    # --- what is not there ---
    NOT_DUMPED = "not_dumped"
    INPUT_NOT_DUMPED = "input_not_dumped"
    INPUT_STATISTICS = "input_statistics"
    INPUT_UNREADABLE = "input_unreadable"
    UNREADABLE = "unreadable"
    NO_NUMBERS = "no_numbers"
    AXES_UNKNOWN = "axes_unknown"
    FED_UNKNOWN = "fed_unknown"
    FED_WITHOUT_FORMULA = "fed_without_formula"

    # --- its size, and the time ---
    TOO_LARGE = "too_large"
    TOO_MANY_AXES = "too_many_axes"
    TOO_MANY_ELEMENTS = "too_many_elements"
    TOO_MANY_PRODUCTS = "too_many_products"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_TIME = "out_of_time"
    WORKER_DIED = "worker_died"
    #: What was to do it on another machine says why not.
    NOT_DONE = "not_done"
    FORMULA_FAILED = "formula_failed"

    # --- a fused op, and the benchmark ---
    FUSED_UNKNOWN = "fused_unknown"
    FUSED_GUESSED = "fused_guessed"
    FUSED_NONE_FITS = "fused_none_fits"
    BENCHMARK_DISOBEYS = "benchmark_disobeys"
    ROWS_OFF = "rows_off"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an op was not recomputed, or not judged; which fields it has hangs on `why`.

    `name` and `other` are attributes, inputs or parts by the op's prototype; `value` is one of an attribute as the
    graph has it, `detail` the text of an error. `also` are more reasons for the same.
    """

    why: Why
    _: KW_ONLY
    op_type: str = ""
    name: str = ""
    other: str = ""
    value: str = ""
    dtype: str = ""
    slot: int | None = None
    number: float | None = None
    limit: float | None = None
    shape: Shape | None = None
    other_shape: Shape | None = None
    shapes: tuple[Shape, ...] = ()
    detail: str = ""
    also: tuple[Reason, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """It as files keep it: what it has."""
        kept = {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }
        kept |= {"why": str(self.why)} | ({"also": [one.to_dict() for one in self.also]} if self.also else {})
        return kept

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Reason:
        """The reason of what was kept. KeyError, TypeError or ValueError for what is none."""
        found = dict(kept)
        for name in ("shape", "other_shape"):
            if name in found:
                found[name] = tuple(found[name])
        found["shapes"] = tuple(map(tuple, found.get("shapes", ())))
        found["also"] = tuple(map(cls.from_dict, found.get("also", ())))
        return cls(**{**found, "why": Why(found["why"])})


def joined(reasons: tuple[Reason, ...]) -> Reason | None:
    """Several reasons for one thing as one; None of none."""
    return replace(reasons[0], also=reasons[1:]) if reasons else None


def read_reason(kept: object) -> Reason | str:
    """A reason as files keep it; of an older release its words."""
    return Reason.from_dict(kept) if isinstance(kept, Mapping) else str(kept or "")
