"""What is said of the ops and tensors of two runs of one script, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from precision_tool.lib.model.finding import Evidence


class UnknownInputs(StrEnum):
    """Why an op's inputs tell nothing."""

    NOT_DUMPED = "not_dumped"
    #: The op wrote over them before they were dumped.
    WRITTEN_OVER = "written_over"
    NOT_COMPARED = "not_compared"


# What is to be said of a tensor:


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRunOnly(Evidence):
    """Only one run has the tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesInOneRun(Evidence):
    """Of one run there are only statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByStatistics(Evidence):
    """Both runs have statistics only, and these were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyStatistics(Evidence):
    """Statistics do not tell how far off values are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherForm(Evidence):
    """The tensors of the two runs are of two types or shapes."""

    left_dtype: str
    left_shape: tuple[int, ...]
    right_dtype: str
    right_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNumbers(Evidence):
    """Elements of this type are no numbers."""

    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstThread(Evidence):
    """Of an op in slices the first whose slices differ is compared."""

    thread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared(Evidence):
    """Not dumped, not readable or not comparable; `reason` is what the reader or the comparison says."""

    reason: str


class Size(StrEnum):
    """How large a difference is."""

    UNKNOWN = "unknown"
    #: As of sums of the same numbers in another order.
    ROUNDING = "rounding"
    MORE = "more"


# What an op is said from:


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputNotCompared(Evidence):
    """No output differs, and of one it is not known; `slot` is empty if none was dumped."""

    slot: str = ""
    reason: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDiffers(Evidence):
    """An input already differs, which the op `producer` put out if that is known."""

    slot: str
    producer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomType(Evidence):
    """The op is random by design."""

    op_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherData(Evidence):
    """The outputs differ of an op that brings in the data, or that nothing feeds (`is_fed` is false)."""

    outputs: tuple[str, ...]
    is_fed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsUnknown(Evidence):
    """The outputs differ, and none of the inputs tells why: not dumped, written over in place, or not comparable."""

    outputs: tuple[str, ...]
    why: UnknownInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedDifferently(Evidence):
    """The inputs are the same, the outputs are not.

    `unknown` are inputs that could not be compared; of an output in another form (`other_form`) no size is told.
    """

    outputs: tuple[str, ...]
    size: Size
    unknown: tuple[str, ...]
    other_slot: str = ""
    other_form: OtherForm | None = None
