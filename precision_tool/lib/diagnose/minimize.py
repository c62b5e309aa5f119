"""The smallest case in which an op is still wrong: fewer rows, channels and heads, plainer numbers and attributes.

With a kernel any case can be tried for which the formula gives the right result. Without one there is only what was
dumped: of it a part can be taken where the formula makes of the same part of the inputs that part of the output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations, islice, product
from math import inf, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.diagnose.error_shape import (
    DOUBT,
    MEAN_SQUARE,
    SLACK,
    UNIT,
    Flags,
    Mistake,
    Places,
    misfit,
    places_of,
)
from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, Formula, noise_of
from precision_tool.lib.diagnose.op_settings import Changes, Path, Settings
from precision_tool.lib.diagnose.sampling import folded_type, narrowing
from precision_tool.lib.messages import Message
from precision_tool.lib.ops.base import Doubles, Input, Kind, Output

Array = npt.NDArray[Any]

#: Runs of the kernel at most, if the user says nothing.
RUNS = 400
#: Rounds over axes, attributes and values at most; the third changes nothing as a rule.
_ROUNDS = 6
#: Sizes of an axis that are tried from the smallest on: those of blocks and their neighbours.
_SIZES = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33)
#: Sizes from which a rule is read.
_AROUND = (1, 2, 3, 4, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 96, 128)
#: Blocks that kernels work in, which a rule may name.
_BLOCKS = (2, 4, 8, 16, 32, 64, 128)
#: Blocks beyond the last of which a tail may lie, the likeliest first.
_TAILS = (16, 32, 64, 128, 8)
#: Elements of a case that is made larger at most.
_MOST_ELEMENTS = 1 << 20
#: Axes and attributes of one size that are tried together, and how many such sets.
_TOGETHER, _SETS = 4, 120
#: Relative closeness of two sums of the same terms in float64.
_SAME = 1e-9
#: What an attribute is at its plainest, by its name.
_PLAIN: Mapping[str, Any] = {
    **dict.fromkeys(("strides", "stride", "dilations", "dilation"), 1),
    "output_padding": 0,
    **dict.fromkeys(
        (
            "keep_dims", "keepdim", "is_causal", "ceil_mode", "align_corners", "exclusive", "reverse",
            "half_pixel_centers",
        ),
        False,
    ),
    **dict.fromkeys(("epsilon", "eps", "variance_epsilon"), 1e-5),
}  # fmt: skip
_TURNED = {"transpose_x1": 0, "transpose_a": 0, "adj_x1": 0, "adj_x": 0, "transpose_x2": 1, "transpose_b": 1,
           "adj_x2": 1, "adj_y": 1}  # fmt: skip
#: Types that a kernel may add up in, and terms of a sum at least that tell it.
_NARROW, _LONG = ("float16", "bfloat16"), 32
_EPSILONS, _AXES = ("epsilon", "eps", "variance_epsilon"), ("axis", "axes", "dim")


class KernelFailedError(Exception):
    """The kernel puts out nothing for a case: it crashed, hung, or wrote other files than it should.

    Parameters
    ----------
    reason : Message
        What happened.
    """

    def __init__(self, reason: Message) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _ShapeError(ValueError):
    """An output has not as many elements as the formula gives."""

    def __init__(self, slot: int, shape: Sequence[int], other: Sequence[int]) -> None:
        super().__init__(f"output {slot}: {shape}, not {other}")
        self.reason = Message("minimal.kernel.shape", slot=slot, shape=tuple(shape), other=tuple(other))


class NotWrongError(Exception):
    """Rounding accounts for all that the output of the whole op is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Inputs and settings of an op, with what it puts out of them; `got` is empty of a case that is yet to be run."""

    inputs: Mapping[int, Input]
    changes: Changes
    formula: Formula = field(repr=False)
    got: Mapping[int, Input] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Elements of all inputs and outputs."""
        return sum(tensor.array.size for tensor in (*self.inputs.values(), *self.got.values()))


#: Returns the outputs by slot. KernelFailedError where there are none.
Kernel = Callable[[Case], Mapping[int, Array]]


class Condition(StrEnum):
    """For which sizes of an axis an op is wrong."""

    NOT_MULTIPLE = "not_multiple"
    MULTIPLE = "multiple"
    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    EXACTLY = "exactly"
    #: No rule fits: those that were tried.
    SOME = "some"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRule:
    """A rule over the sizes of an axis that were tried: of an output if it is there, else of an input.

    `number` is the block, or the bound, `wrong` and `right` the sizes that were tried.
    """

    condition: Condition
    number: int
    slot: int
    axis: int
    is_output: bool
    is_last: bool
    wrong: tuple[int, ...]
    right: tuple[int, ...]


class Part(StrEnum):
    """Which part of an axis is wrong."""

    ONE = "one"
    #: All beyond the last multiple of a block.
    TAIL = "tail"
    END = "end"
    START = "start"
    RANGE = "range"
    EVERY = "every"
    SOME = "some"


#: Parts that hang on where an axis ends, or on what it is divided into.
_PLACED = (Part.TAIL, Part.END, Part.START, Part.RANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The indices of an output's axis in which every wrong element lies; `block` is that of a tail, or a step."""

    part: Part
    slot: int
    axis: int
    is_last: bool
    size: int
    first: int
    last: int
    count: int
    block: int = 0


@dataclass(frozen=True, kw_only=True)
class Minimized:
    """The smallest case, and what generalizes it.

    `as_if` is a setting with which the formula gives the outputs: its name, its value, and the other one. `failed`
    counts runs in which the kernel put out nothing.
    """

    case: Case
    original: Case
    rules: tuple[SizeRule, ...] = ()
    spans: tuple[Span, ...] = ()
    #: Which simple mistake would have made the output of the whole op.
    places: Places | None = None
    as_if: tuple[str, str, str] | None = None
    #: Settings that differ from the op's own, by name and place in a list.
    changed: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 0
    failed: int = 0
    limit: int = 0
    is_limited: bool = False
    is_stopped: bool = False
    #: The kernel was wrong at every size that was tried around the smallest case.
    is_at_any_size: bool = False


@dataclass(frozen=True, slots=True)
class _Judged:
    """How far outputs are off: elements by slot, the largest error over its bound, and of each element."""

    bad: Mapping[int, Flags]
    ratio: Mapping[int, Doubles]
    true: Mapping[int, Array]
    excess: float
    is_beyond_chains: bool
    is_finite: bool


def _judge(formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]) -> _Judged:
    """Compare outputs with the formula's as the verdict does; FORMULA_ERRORS where that cannot be."""
    with np.errstate(all="ignore"):
        made = formula.run(inputs)
        noise = noise_of(formula, inputs, made, folded_type(formula, inputs) or "float32")
    u_in, kind = narrowing(formula, inputs), formula.kind
    bad, ratio, true = {}, {}, {}
    excess, is_beyond, is_finite = 0.0, False, False
    stored: dict[str, dict[int, Output]] = {}
    for slot, have in got.items():
        out = made[slot]
        if out.array.size != have.array.size:
            raise _ShapeError(slot, have.array.shape, out.array.shape)
        if out.array.dtype.kind == "c":
            raise ValueError(f"output {slot}: complex")
        fit = misfit(have.array, out, have.dtype, kind, u_in=u_in, noise=noise.get(slot))
        if fit.bad.any() and len(formula.stages) > 1 and have.dtype in UNIT:
            if have.dtype not in stored:
                stored[have.dtype] = formula.run(inputs, have.dtype)
            other = misfit(have.array, stored[have.dtype][slot], have.dtype, kind, u_in=u_in, noise=noise.get(slot))
            if other.excess < fit.excess and other.excess <= DOUBT:
                fit = other
        shape = out.array.shape
        bad[slot], ratio[slot] = fit.bad.reshape(shape), np.where(fit.bad, fit.ratio, 0.0).reshape(shape)
        true[slot] = out.array
        if fit.bad.any():
            excess = max(excess, fit.excess)
            is_beyond |= bool(fit.is_beyond_chains)
            is_finite |= bool(np.isfinite(fit.got[fit.bad]).any())
    return _Judged(bad, ratio, true, excess, is_beyond, is_finite)


def minimize(
    settings: Settings,
    inputs: Mapping[int, Input],
    got: Mapping[int, Input],
    kernel: Kernel | None = None,
    *,
    limit: int = RUNS,
    progress: Callable[[int, int], None] | None = None,
) -> Minimized:
    """Shrink a case while the op stays wrong by more than rounding, greedily until nothing can be left out.

    Parameters
    ----------
    settings : Settings
        The op's formula and its attributes.
    inputs, got : mapping of int to Input
        Its inputs and outputs by slot, as dumped. With a kernel only the types and axes of the outputs count.
    kernel : callable, optional
        Runs a case. Without one parts of the dumped outputs are taken.
    limit : int
        Runs of the kernel at most.
    progress : callable, optional
        Is called with the runs made and `limit`; without a kernel with the axes that were looked at, and all.

    Returns
    -------
    Minimized
        The smallest case. Ctrl+C ends the search with what it has then.

    Raises
    ------
    NotWrongError
        The op is right, or the kernel is for the op's own inputs.
    KernelFailedError
        It puts out nothing for these.
    NotComputedError
        The op cannot be recomputed.
    """
    search = _Search(settings, dict(got), kernel, limit, progress)
    search.begin(inputs)
    try:
        search.shrink()
        search.generalize()
    except KeyboardInterrupt:
        search.is_stopped = True
    except _LimitError:
        search.is_limited = True
    changed = {
        ".".join((settings.name(path), *map(str, path[2:]))): value
        for path, value in search.case.changes.items() if settings.values[path] != value
    }  # fmt: skip
    return Minimized(
        case=search.case, changed=changed, original=search.original, rules=tuple(search.rules), spans=search.spans,
        places=search.places,
        as_if=search.as_if, runs=search.runs, failed=search.failed, limit=limit if kernel is not None else 0,
        is_limited=search.is_limited, is_stopped=search.is_stopped, is_at_any_size=search.is_at_any_size,
    )  # fmt: skip


class _LimitError(Exception):
    """As many runs were made as may be."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Axes of inputs, and settings, that are of one size together."""

    size: int
    axes: tuple[tuple[int, int], ...]
    paths: tuple[Path, ...]


class _Search:
    """One search; `case` is the smallest so far."""

    def __init__(
        self,
        settings: Settings,
        got: Mapping[int, Input],
        kernel: Kernel | None,
        limit: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._settings, self._got, self._kernel = settings, got, kernel
        self._limit, self._progress = limit, progress
        self._values = settings.values
        #: Cases that are not wrong, by what they are made of.
        self._right: set[bytes] = set()
        #: How plain the values of each input are by now.
        self._plain: dict[int, int] = {}
        self.runs = self.failed = 0
        self.rules: list[SizeRule] = []
        self.spans: tuple[Span, ...] = ()
        self.places: Places | None = None
        self._shape: tuple[int, ...] = ()
        self.as_if: tuple[str, str, str] | None = None
        self.is_limited = self.is_stopped = self.is_at_any_size = False
        self.case: Case
        self.original: Case
        #: The original, with matrices that are not transposed.
        self._whole: Case
        self._judged: _Judged

    # --- one case ---

    def begin(self, inputs: Mapping[int, Input]) -> None:
        """Run the whole case, which has to be wrong."""
        case = Case(inputs=dict(inputs), changes={}, formula=self._settings.formula(inputs, {}))
        got = self._got if self._kernel is None else self._run(case)
        known = {slot: tensor for slot, tensor in got.items() if slot in case.formula.outputs}
        try:
            judged = _judge(case.formula, case.inputs, known)
        except _ShapeError as error:
            raise KernelFailedError(error.reason) from error
        wrong = {slot: tensor for slot, tensor in known.items() if judged.bad[slot].any()}
        if not wrong:
            raise NotWrongError
        self._judged = judged
        self._proof = next((bound for bound in (DOUBT, 1.0) if judged.excess > bound), 0.0)
        self._got = {slot: self._got[slot] for slot in wrong}
        self.case = self.original = self._whole = replace(case, got=wrong)
        slot = next(iter(wrong))
        self.spans = tuple(_spans(judged.bad, slot))
        bad, true = judged.bad[slot], judged.true[slot]
        self._shape = true.shape
        have = np.asarray(wrong[slot].array).reshape(true.shape)
        self.places = places_of(have, true, bad.reshape(-1), UNIT.get(wrong[slot].dtype, 0.0))
        self.as_if = self._as_if()

    def _is_wrong(self, judged: _Judged) -> bool:
        """Return whether a case is wrong as the whole is: as plainly, and with numbers where that has them."""
        if not any(bad.any() for bad in judged.bad.values()) or (self._judged.is_finite and not judged.is_finite):
            return False
        return judged.excess > self._proof or (self._judged.is_beyond_chains and judged.is_beyond_chains)

    def _run(self, case: Case) -> dict[int, Input]:
        """Return what the kernel puts out, in the types of the dumped outputs."""
        assert self._kernel is not None
        if self.runs >= self._limit:
            raise _LimitError
        self.runs += 1
        if self._progress is not None:
            self._progress(self.runs, self._limit)
        made = self._kernel(case)
        got = {}
        for slot, like in self._got.items():
            if slot not in made:
                raise KernelFailedError(Message("minimal.kernel.missing", slot=slot))
            array = np.asarray(made[slot])
            got[slot] = replace(like, array=array.astype(np.float64) if array.dtype.kind == "f" else array)
        return got

    def _attempt(self, inputs: Mapping[int, Input], changes: Changes) -> Case | None:
        """Return a case as run by the kernel if it is wrong there, else None."""
        key = _digest(inputs, changes)
        if key in self._right:
            return None
        case = self._run_and_judge(inputs, changes)
        if case is None:
            self._right.add(key)
        return case

    def _run_and_judge(self, inputs: Mapping[int, Input], changes: Changes) -> Case | None:
        try:
            formula = self._settings.formula(inputs, changes)
            case = Case(inputs=inputs, changes=changes, formula=formula)
            if not _has_finite(formula.run(inputs), self._got):
                return None
        except FORMULA_ERRORS:
            return None  # nobody knows what is right there
        try:
            case = replace(case, got=self._run(case))
            judged = _judge(formula, inputs, case.got)
        except (KernelFailedError, *FORMULA_ERRORS):
            self.failed += 1
            return None
        return case if self._is_wrong(judged) else None

    def _keep(self, case: Case | None) -> bool:
        if case is None:
            return False
        self.case = case
        return True

    # --- shrinking ---

    def shrink(self) -> None:
        """Leave out what can be left out, until nothing changes."""
        if self._kernel is not None:
            self._turn_back()
            self._plainer_settings()
        for _ in range(_ROUNDS):
            changed = self._shrink_axes()
            if self._kernel is not None:
                changed = self._plainer_settings() or changed
                changed = self._plainer_values() or changed
            if not changed:
                return

    def _groups(self) -> Iterator[_Group]:
        """Yield the axes of the inputs that can be of another size, with those that have to go with them."""
        seen: set[tuple[int, int]] = set()
        places = [
            (slot, axis) for slot in sorted(self.case.inputs) for axis in range(self.case.inputs[slot].array.ndim)
        ]
        for number, place in enumerate(places):
            if self._kernel is None and self._progress is not None:
                self._progress(number, len(places))
            if place in seen:
                continue
            group = self._group(place, [other for other in places if other not in seen])
            if group is not None:
                seen.update(group.axes)
                yield group

    def _group(self, place: tuple[int, int], places: Sequence[tuple[int, int]]) -> _Group | None:
        slot, axis = place
        size = self.case.inputs[slot].array.shape[axis]
        if size < 2:
            return None
        others = [
            other for other in places if other != place and self.case.inputs[other[0]].array.shape[other[1]] == size
        ]
        values = {**self._values, **self.case.changes}
        paths = [path for path, value in values.items() if type(value) is int and value == size]
        # Of two rows, one would be broadcast: that is the last to be tried.
        sizes = {2: (3, 1), 3: (2, 4)}.get(size, (2, size // 2))
        for number in sizes:
            for some in islice(self._sets(place, others, paths), _SETS):
                axes = tuple(other for other in some if other in others)
                group = _Group(size, (place, *axes), tuple(path for path in some if path not in others))
                if self._has_result(*self._resized(group, np.arange(number) % size)):
                    return group
        return None

    def _sets(
        self, place: tuple[int, int], others: Sequence[tuple[int, int]], paths: Sequence[Path]
    ) -> Iterator[tuple[Path, ...]]:
        """Yield what may go with an axis: nothing, each other, those of many inputs that are alike, then any few."""
        every, shape = [*others, *paths], self.case.inputs[place[0]].array.shape
        yield ()
        yield from ((other,) for other in every)
        of_inputs = {other: self.case.inputs[other[0]].array for other in others}
        alike = {other for other, array in of_inputs.items() if other[1] == place[1] and array.shape == shape}
        parameters = {other for other, array in of_inputs.items() if array.ndim == 1}
        for some in (alike, parameters, alike | parameters):
            if len(some) > 1:
                yield tuple(other for other in others if other in some)
        for count in range(2, min(_TOGETHER, len(every)) + 1):
            yield from combinations(every, count)

    def _has_result(self, inputs: Mapping[int, Input], changes: Changes) -> bool:
        try:
            self._settings.formula(inputs, changes).run(inputs)
        except FORMULA_ERRORS:
            return False
        return True

    def _resized(self, group: _Group, indices: npt.NDArray[np.intp]) -> tuple[dict[int, Input], dict[Path, Any]]:
        """Return inputs and settings with some indices of the axes of a group."""
        inputs = dict(self.case.inputs)
        for slot, axis in group.axes:
            inputs[slot] = replace(inputs[slot], array=np.take(inputs[slot].array, indices, axis))
        return inputs, {**self.case.changes, **dict.fromkeys(group.paths, int(indices.size))}

    def _shrink_axes(self) -> bool:
        changed = False
        for group in self._groups():
            changed = (self._shorter(group) if self._kernel is not None else self._part(group)) or changed
        return self._patch() or changed if self._kernel is None else changed

    def _patch(self) -> bool:
        """Take what the worst element of a convolution is made of: a patch of the image as large as the filter.

        Where padding stands in a patch it becomes part of the image, and the convolution one without padding. Which
        patch it is the right result tells.
        """
        (first, *_), case = self.case.formula.stages, self.case
        refs = [ref for ref in first.args[:2] if ref is not None and ref.stage is None]
        if "conv2d" not in first.op_type.lower() or len(refs) < 2 or len(case.got) > 1:
            return False
        image, kernel = (case.inputs.get(ref.slot) for ref in refs)
        (slot,) = case.got
        judged = _judge(case.formula, case.inputs, case.got)
        true = judged.true[slot]
        if image is None or kernel is None or not image.array.ndim == kernel.array.ndim == true.ndim == 4:
            return False
        layout = case.got[slot].layout if len(case.got[slot].layout) == true.ndim else image.layout
        axes, of_kernel, made = (_image_axes(name) for name in (image.layout, kernel.layout, layout))
        if all(true.shape[axis] == 1 for axis in made):
            return False
        if any(self._needed(axis, true.shape[axis]) != 1 for axis in made):
            return False
        at = [int(index) for index in np.unravel_index(int(judged.ratio[slot].argmax()), true.shape)]
        sizes = [kernel.array.shape[axis] for axis in of_kernel]
        unpadded = {**case.changes, **{
            path: other for path, value in self._values.items()
            for other in (_without_padding(self._settings.name(path), value),) if other != value
        }}  # fmt: skip
        others = {
            other: replace(tensor, array=_window(tensor.array, made, [at[axis] for axis in made], (1, 1)))
            for other, tensor in case.inputs.items()
            if tensor.array.ndim == 4 and other not in (refs[0].slot, refs[1].slot)
            and all(tensor.array.shape[axis] == true.shape[axis] for axis in made)
        }  # fmt: skip
        got = replace(case.got[slot], array=_window(
            np.asarray(case.got[slot].array).reshape(true.shape), made, [at[axis] for axis in made], (1, 1)
        ))  # fmt: skip
        right = _window(true, made, [at[axis] for axis in made], (1, 1))
        strides = {value for path, value in self._values.items() if "stride" in self._settings.name(path)} | {1}
        steps = sorted(step for step in strides if type(step) is int)
        for step, top, left in product(steps, range(sizes[0]), range(sizes[1])):
            starts = [at[axis] * step - before for axis, before in zip(made, (top, left), strict=True)]
            patch = replace(image, array=_window(image.array, axes, starts, sizes))
            inputs = {**case.inputs, **others, refs[0].slot: patch}
            try:
                formula = self._settings.formula(inputs, unpadded)
                if not _is_same(np.asarray(formula.run(inputs)[slot].array), right):
                    continue
                if self._is_wrong(_judge(formula, inputs, {slot: got})):
                    return self._keep(Case(inputs=inputs, changes=unpadded, formula=formula, got={slot: got}))
            except FORMULA_ERRORS:
                continue
        return False

    def _shorter(self, group: _Group) -> bool:
        """Take the smallest size of an axis at which the kernel is wrong; one less is right, or has no result."""
        right, wrong = 0, group.size
        for size in _sizes_below(group.size):
            if self._keep(self._of_size(group, size)):
                wrong = size
                break
            right = size
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self._keep(self._of_size(replace(group, size=wrong), middle)):
                wrong = middle
            else:
                right = middle
        return wrong < group.size

    def _of_size(self, group: _Group, size: int) -> Case | None:
        """Return a case with the first indices of an axis, or with those around the worst element."""
        case = self._attempt(*self._resized(group, np.arange(size)))
        at = None if case is not None else self._worst_index(group)
        if at is None:
            return case
        start = min(max(0, at - size // 2), group.size - size)
        return self._attempt(*self._resized(group, np.arange(start, start + size))) if start else None

    def _worst_index(self, group: _Group) -> int | None:
        """Return where on an axis the worst element of the case is; None where no axis of the output is as long."""
        ratio = next(iter(_judge(self.case.formula, self.case.inputs, self.case.got).ratio.values()))
        axis = next((axis for axis, size in enumerate(ratio.shape) if size == group.size), None)
        return None if axis is None else int(np.unravel_index(int(ratio.argmax()), ratio.shape)[axis])

    def _part(self, group: _Group) -> bool:
        """Take as few indices of an axis as are wrong, if the rest of the dumped output does not hang on the others."""
        judged = _judge(self.case.formula, self.case.inputs, self.case.got)
        first = self._resized(group, np.arange(group.size // 2))
        try:
            axes = _axes_taken(judged.true, self._settings.formula(*first).run(first[0]), np.arange(group.size // 2))
        except FORMULA_ERRORS:
            return False
        if axes is None:
            return False
        needed = self._needed(axes.get(next(iter(self._got))), group.size)
        if isinstance(needed, range):
            return len(needed) < group.size and self._keep(self._taken(group, np.array(needed), judged.true))
        worst = np.zeros(group.size)
        for slot, axis in axes.items():
            if axis is not None:
                ratio = judged.ratio[slot]
                worst = np.maximum(worst, ratio.max(axis=tuple(other for other in range(ratio.ndim) if other != axis)))
        order, count = np.argsort(-worst, kind="stable"), needed
        while count < group.size:
            if self._keep(self._taken(group, np.sort(order[:count]), judged.true)):
                return True
            count *= 2
        return False

    def _needed(self, axis: int | None, size: int) -> range | int:
        """Return the indices of an axis of the output without which a kernel would be right, or how many at least.

        No kernel is run: a tail needs all of its axis, a tile all up to its border, values that stand elsewhere two.
        """
        places = self.places
        if axis is None or places is None:
            return 1
        if places.is_moved and (not places.order or places.order[axis] != axis):
            return 2
        if places.mistake is Mistake.SHIFTED and places.axis == axis:
            return abs(places.steps) + 1
        outer = next((span.axis for span in self.spans if span.last == span.size - 1), None)
        if places.mistake is Mistake.TAIL and outer is not None and places.first % prod(self._shape[outer + 1 :]):
            return range(size)  # the end of the whole tensor, which begins within a row
        span = next((span for span in self.spans if span.axis == axis), None)
        if span is None or span.part not in _PLACED:
            return 1
        return range(min(span.last + 2, size))

    def _taken(self, group: _Group, indices: npt.NDArray[np.intp], true: Mapping[int, Array]) -> Case | None:
        """Return a part of the case if it is wrong, and right results are the same as in the whole."""
        inputs, changes = self._resized(group, indices)
        try:
            formula = self._settings.formula(inputs, changes)
            axes = _axes_taken(true, formula.run(inputs), indices)
            if axes is None:
                return None
            got = {
                slot: tensor if axis is None else _taken(tensor, true[slot].shape, indices, axis)
                for slot, tensor in self.case.got.items()
                for axis in (axes[slot],)
            }
            judged = _judge(formula, inputs, got)
        except FORMULA_ERRORS:
            return None
        return Case(inputs=inputs, changes=changes, formula=formula, got=got) if self._is_wrong(judged) else None

    # --- plainer settings and values ---

    def _turn_back(self) -> None:
        """Take matrices as they are multiplied, not transposed."""
        for path, value in self._values.items():
            number = _TURNED.get(self._settings.name(path))
            inputs = self.case.inputs
            if number is None or not value or number >= len(inputs):
                continue
            slot = sorted(inputs)[number]
            if inputs[slot].array.ndim > 1:
                turned = replace(inputs[slot], array=np.swapaxes(inputs[slot].array, -1, -2).copy())
                self._keep(self._attempt({**inputs, slot: turned}, {**self.case.changes, path: False}))
        self._whole = self.case

    def _plainer_settings(self) -> bool:
        changed = False
        lists: dict[Path, dict[Path, Any]] = {}
        for path, value in {**self._values, **self.case.changes}.items():
            name = self._settings.name(path)
            other = _PLAIN[name] if name in _PLAIN else _without_padding(name, value)
            if other != value:
                lists.setdefault(path[:2], {})[path] = other
        for changes in lists.values():
            changed = self._keep(self._attempt(self.case.inputs, {**self.case.changes, **changes})) or changed
        return changed

    def _plainer_values(self) -> bool:
        changed = False
        for slot, tensor in sorted(self.case.inputs.items()):
            for rank, array in enumerate(_plain_arrays(tensor.array)):
                if rank >= self._plain.get(slot, inf):
                    break
                inputs = {**self.case.inputs, slot: replace(tensor, array=array)}
                if self._keep(self._attempt(inputs, self.case.changes)):
                    self._plain[slot], changed = rank, True
                    break
        return changed

    # --- one sentence ---

    def generalize(self) -> None:
        """Try sizes around those of the smallest case, and read rules off them."""
        if self._kernel is None:
            return
        is_at_any_size = True
        for group in self._all_groups():
            tried = {group.size: True}
            around = {*_AROUND, group.size - 1, group.size + 1, group.size + 2, 2 * group.size}
            for size in sorted(around - {0, group.size}):
                is_wrong = self._is_wrong_at(group, size)
                if is_wrong is not None:
                    tried[size] = is_wrong
            rule = self._rule(group, tried)
            if rule is not None and (rule.condition is not Condition.SOME or self.as_if is None):
                self.rules.append(rule)
            is_at_any_size &= all(tried.values())
        self.is_at_any_size = is_at_any_size

    def _is_wrong_at(self, group: _Group, size: int) -> bool | None:
        """Return whether the op is wrong where an axis has this size; None where it has no result.

        The few numbers of the smallest case may hide an error that hangs on them: those of the whole are tried too.
        """
        final, answer = self.case, None
        for case in (final, self._whole):
            slot, axis = group.axes[0]
            self.case = case
            indices = np.arange(size) % case.inputs[slot].array.shape[axis]
            inputs, changes = self._resized(group, indices)
            self.case = final
            is_small = sum(tensor.array.size for tensor in inputs.values()) <= _MOST_ELEMENTS
            if not answer and is_small and self._has_result(inputs, changes):
                answer = self._attempt(inputs, changes) is not None
        return answer

    def _all_groups(self) -> Iterator[_Group]:
        """Yield the groups of the whole case, with the sizes of the smallest."""
        final, self.case = self.case, self._whole
        groups = list(self._groups())
        self.case = final
        for group in groups:
            slot, axis = group.axes[0]
            yield replace(group, size=final.inputs[slot].array.shape[axis])

    def _rule(self, group: _Group, tried: Mapping[int, bool]) -> SizeRule | None:
        wrong = tuple(sorted(size for size, is_wrong in tried.items() if is_wrong))
        right = tuple(sorted(size for size, is_wrong in tried.items() if not is_wrong))
        found = _condition(wrong, right)
        if found is None:
            return None
        condition, number = found
        slot, axis = group.axes[0]
        is_output, ndim = False, self.case.inputs[slot].array.ndim
        with np.errstate(all="ignore"):
            before = self.case.formula.run(self.case.inputs)
            inputs, changes = self._resized(group, np.arange(right[0]) % group.size)
            try:
                after = self._settings.formula(inputs, changes).run(inputs)
            except FORMULA_ERRORS:
                after = {}
        for place in self._got:
            shapes = (before[place].array.shape, after[place].array.shape) if place in after else ((), ())
            axes = [at for at, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b]
            if len(axes) == 1:
                slot, axis, is_output, ndim = place, axes[0], True, len(shapes[0])
                break
        return SizeRule(
            condition=condition, number=number, slot=slot, axis=axis, is_output=is_output, is_last=axis == ndim - 1,
            wrong=wrong, right=right,
        )  # fmt: skip

    def _as_if(self) -> tuple[str, str, str] | None:
        """Return the setting with which the formula gives what the whole op puts out."""
        for path, value in self._values.items():
            name = self._settings.name(path)
            others: Iterable[Any] = ()
            if name in _EPSILONS and value:
                others = (0.0,)
            elif name in _AXES and type(value) is int:
                ndim = max(tensor.array.ndim for tensor in self.case.inputs.values())
                others = (axis for axis in range(ndim) if axis != value % ndim)
            for other in others:
                try:
                    formula = self._settings.formula(self.case.inputs, {path: other})
                    judged = _judge(formula, self.case.inputs, self.case.got)
                except FORMULA_ERRORS:
                    continue
                if not any(bad.any() for bad in judged.bad.values()):
                    return name, str(value), str(other)
        return self._sums_in()

    def _sums_in(self) -> tuple[str, str, str] | None:
        """Return the narrow type in which sums that are so far off are added up."""
        case = self.case
        if case.formula.kind not in (Kind.MATRIX, Kind.SUM) or len(case.got) > 1:
            return None
        (slot,) = case.got
        out = case.formula.run(case.inputs)[slot]
        if out.length < _LONG:
            return None
        off = np.abs(np.asarray(case.got[slot].array, np.float64).reshape(out.array.shape) - out.array)
        for dtype in _NARROW:
            rms = np.sqrt(MEAN_SQUARE) * UNIT[dtype] * np.maximum(np.asarray(out.summed), np.abs(out.array))
            times = off / np.where(rms > 0, rms, 1.0)
            if times.max() <= SLACK[case.formula.kind] and np.median(times) >= 1 / SLACK[case.formula.kind]:
                return "sums", "float32", dtype
        return None


# --- parts ------------------------------------------------------------------------------------------------------------


def _digest(inputs: Mapping[int, Input], changes: Changes) -> bytes:
    made = hashlib.sha256(repr(sorted(changes.items(), key=repr)).encode())
    for slot, tensor in sorted(inputs.items()):
        made.update(f"{slot} {tensor.array.shape} {tensor.array.dtype}".encode())
        made.update(np.ascontiguousarray(tensor.array).tobytes())
    return made.digest()


def _has_finite(made: Mapping[int, Output], wanted: Iterable[int]) -> bool:
    return all(slot in made and bool(np.isfinite(made[slot].array).any()) for slot in wanted)


def _sizes_below(size: int) -> Iterator[int]:
    """Yield the sizes that are tried, the small ones first: blocks of 16 that double, and their neighbours."""
    yield from (small for small in _SIZES if small < size)
    block = 64
    while block - 1 < size:
        yield from (near for near in (block - 1, block, block + 1) if near < size)
        block *= 2


def _plain_arrays(array: Array) -> Iterator[Array]:
    """Yield arrays of the same shape, the plainest first: zeros, ones, a single one, small whole numbers."""
    yield np.zeros_like(array)
    yield np.ones_like(array)
    if array.dtype.kind != "f":
        return
    single = np.zeros_like(array)
    if array.size:
        single.reshape(-1)[0] = 1
    yield single
    finite = np.where(np.isfinite(array), array, 0.0)
    largest = float(np.abs(finite).max(initial=0.0))
    yield np.rint(finite * (4 / largest)) if largest else finite


def _image_axes(layout: str) -> tuple[int, int]:
    """Return the axes of height and width; those of PyTorch where they have no names."""
    return (layout.index("H"), layout.index("W")) if len(layout) == 4 else (2, 3)


def _without_padding(name: str, value: Any) -> Any:
    """Return the value of a setting of a convolution that has no padding."""
    if name == "padding" and isinstance(value, str):
        return {"SAME": "VALID", "same": "valid"}.get(value, value)
    return 0 if name in ("pads", "padding", "pad") and type(value) is int else value


def _window(array: Array, axes: Sequence[int], starts: Sequence[int], sizes: Sequence[int]) -> Array:
    """Return a part of an array along some axes, with zeros where there is nothing of it."""
    for axis, start, size in zip(axes, starts, sizes, strict=True):
        length = array.shape[axis]
        before, after = max(0, min(size, -start)), max(0, min(size, start + size - length))
        array = np.take(array, np.arange(max(0, start), max(0, min(length, start + size))), axis)
        widths = [(before, after) if other == axis else (0, 0) for other in range(array.ndim)]
        array = np.pad(array, widths)
    return array


def _axes_taken(
    true: Mapping[int, Array], made: Mapping[int, Output], indices: npt.NDArray[np.intp]
) -> dict[int, int | None] | None:
    """Return by output the axis whose `indices` a part has, None of one that is the same; None if any is neither."""
    axes: dict[int, int | None] = {}
    for slot, whole in true.items():
        if slot not in made:
            return None
        part = np.asarray(made[slot].array)
        options: list[int | None] = [None] if part.shape == whole.shape else []
        options += [
            axis for axis in range(whole.ndim)
            if part.shape == (*whole.shape[:axis], indices.size, *whole.shape[axis + 1 :])
        ]  # fmt: skip
        for axis in options:
            if axis is not None and int(indices.max(initial=0)) >= whole.shape[axis]:
                continue
            if _is_same(part, whole if axis is None else np.take(whole, indices, axis)):
                axes[slot] = axis
                break
        else:
            return None
    return axes


def _is_same(a: Array, b: Array) -> bool:
    with np.errstate(all="ignore"):
        if a.dtype.kind != "f":
            return bool(np.array_equal(a, b))
        size = float(np.abs(b, where=np.isfinite(b), out=np.zeros(b.shape)).max(initial=0.0))
        return bool(np.allclose(a, b, rtol=_SAME, atol=_SAME * size, equal_nan=True))


def _taken(tensor: Input, shape: tuple[int, ...], indices: npt.NDArray[np.intp], axis: int) -> Input:
    return replace(tensor, array=np.take(np.asarray(tensor.array).reshape(shape), indices, axis))


def _condition(wrong: Sequence[int], right: Sequence[int]) -> tuple[Condition, int] | None:
    """Return the rule that tells sizes at which an op is wrong from those at which it is right; None if all are."""
    if not right:
        return None
    for block in _BLOCKS:
        is_told = sum(size % block == 0 for size in (*wrong, *right)) > 1
        if is_told and all(size % block for size in wrong) and not any(size % block for size in right) and wrong[1:]:
            return Condition.NOT_MULTIPLE, block
        if is_told and not any(size % block for size in wrong) and all(size % block for size in right) and wrong[1:]:
            return Condition.MULTIPLE, block
    if max(right) < min(wrong):
        return Condition.AT_LEAST, min(wrong)
    if max(wrong) < min(right):
        return Condition.AT_MOST, max(wrong)
    if len(wrong) == 1:
        return Condition.EXACTLY, wrong[0]
    return Condition.SOME, 0


def _spans(bad: Mapping[int, Flags], slot: int) -> Iterator[Span]:
    """Yield for each axis of an output the indices in which every wrong element lies, unless that is all of them."""
    flags = bad[slot]
    for axis, size in enumerate(flags.shape):
        where = np.flatnonzero(flags.any(axis=tuple(other for other in range(flags.ndim) if other != axis)))
        if where.size == size or size < 2:
            continue
        first, last, count = int(where[0]), int(where[-1]), int(where.size)
        steps = np.unique(np.diff(where))
        block = next((block for block in _TAILS if first == size // block * block), 0)
        part, step = Part.SOME, 0
        if count == 1:
            part = Part.ONE
        elif count == last - first + 1:
            part = Part.END if last == size - 1 else Part.START if not first else Part.RANGE
            if part is Part.END and block and first:
                part, step = Part.TAIL, block
        elif steps.size == 1 and first < steps[0] and last + steps[0] >= size:
            part, step = Part.EVERY, int(steps[0])
        if count == 1 and last == size - 1 and block and first:
            part, step = Part.TAIL, block
        yield Span(
            part=part, slot=slot, axis=axis, is_last=axis == flags.ndim - 1, size=size, first=first, last=last,
            count=count, block=step,
        )  # fmt: skip
