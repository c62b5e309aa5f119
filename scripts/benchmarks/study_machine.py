"""A simulated job: all ranks of a training run op by op, each on its device and, beside it, on the benchmark.

The values come from numpy formulas of this module and of `study_networks.py`, in float64 from what is stored, rounded
when they are stored; nothing of the tool's own formulas is used. Of the tool come the writers of its demo, for the file
formats only. Three models of the device (`DEVICES`) compute as devices are documented to do.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from precision_tool.lib.demo.dump_writer import (
    Array,
    OutTensor,
    dump_file_name,
    golden_file_name,
    pack,
    write_dump,
    write_golden,
    write_statistics,
)
from precision_tool.lib.demo.graph_writer import AI_CORE, GE_LOCAL, model_name, write_graphs
from precision_tool.lib.model.graph import Edge, Op, TensorDesc

HCCL = "ops_kernel_info_hccl"
WORLD = "hccl_world_group"
_START = datetime(2026, 3, 2, 9, 30, 0, tzinfo=UTC)
_MEMORY_START, _MEMORY_STEP = 0x1240_8000_0000, 512
#: Rank → its values.
Ranked = dict[int, Array]


# --- devices ----------------------------------------------------------------------------------------------------------


class Exact:
    """Arithmetic in float64: an ideal device, and the benchmark. What it stores is rounded once."""

    def approx(self, function: str, x: Array) -> Array:
        """Return exp, tanh, rsqrt, sqrt, reciprocal or log of `x`."""
        with np.errstate(all="ignore"):
            if function == "rsqrt":
                return np.asarray(1 / np.sqrt(x))
            if function == "reciprocal":
                return np.asarray(1 / x)
            plain: dict[str, Callable[[Array], Array]] = {
                "exp": np.exp, "tanh": np.tanh, "sqrt": np.sqrt, "log": np.log
            }  # fmt: skip
            return plain[function](x)

    def matmul(self, a: Array, b: Array) -> Array:
        """Return the matrix product."""
        return np.asarray(a @ b)

    def total(self, x: Array, axis: int | tuple[int, ...]) -> Array:
        """Return the sum over axes."""
        return np.asarray(x.sum(axis=axis))

    def kept(self, x: Array, dtype: str) -> Array:
        """Return values as they are stored."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(x).astype(dtype)


class Host(Exact):
    """The benchmark's machine: exact functions, products in float32, and sums in long chains of float32."""

    def matmul(self, a: Array, b: Array) -> Array:
        """Return the product in float32."""
        return np.asarray((a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64))

    def total(self, x: Array, axis: int | tuple[int, ...]) -> Array:
        """Return the sum, one term added after the other."""
        rows = _terms_first(x, axis)
        return np.asarray(np.cumsum(rows.astype(np.float32), axis=0, dtype=np.float32)[-1], np.float64)


class Imprecise(Exact):
    """A device of few bits: functions off by 2⁻¹³ to 2⁻¹², HF32 products, sums by tiles, subnormals flushed.

    The error of a function depends on its argument alone, so it is the same wherever the argument occurs. Tanh is made
    of exp, and the logarithm has an absolute error, so that few elements near zero are off by much of their size.
    Column sums of float16 numbers are kept in float16 from tile to tile.
    """

    def __init__(self, coarser: float = 0.0) -> None:
        """`coarser` are bits that its functions lack beyond."""
        self._coarser = coarser

    _BITS: ClassVar = {"exp": 13, "sqrt": 13, "rsqrt": 12, "reciprocal": 12.5, "log": 13}

    def approx(self, function: str, x: Array) -> Array:
        """Return the function as its table and polynomial have it."""
        if function == "tanh":
            e = self.approx("exp", 2 * np.clip(x, -15, 15)).astype(np.float32)
            return np.asarray((e - 1) * self.approx("reciprocal", (e + 1).astype(np.float64)))
        exact = super().approx(function, x)
        wave = {"exp": 37.0, "sqrt": 51.0, "log": 29.0, "rsqrt": 43.0, "reciprocal": 61.0}[function]
        with np.errstate(invalid="ignore"):
            error = 2.0 ** (self._coarser - self._BITS[function]) * np.sin(wave * np.frexp(x)[0] + len(function))
            return np.asarray(exact + error if function == "log" else exact * (1 + error))

    def matmul(self, a: Array, b: Array) -> Array:
        """Return the product of numbers of 11 bits, K cut into tiles of 16 that are added up in float32."""
        a, b = _few_bits(a, 11), _few_bits(b, 11)
        total = np.zeros((), np.float32)
        for start in range(0, a.shape[-1], 16):
            part = a[..., start : start + 16] @ b[..., start : start + 16, :]
            total = total + part.astype(np.float32)
        return np.asarray(total, np.float64)

    def total(self, x: Array, axis: int | tuple[int, ...]) -> Array:
        """Return the sum, tile after tile."""
        rows = _terms_first(x, axis)
        with np.errstate(over="ignore", invalid="ignore"):
            is_half = axis == 0 and bool((rows.astype(np.float16) == rows).all())
        dtype = np.float16 if is_half else np.float32
        total = np.zeros(rows.shape[1:], dtype)
        for start in range(0, len(rows), 8):
            total = (total + rows[start : start + 8].astype(np.float32).sum(axis=0, dtype=np.float32)).astype(dtype)
        return total.astype(np.float64)

    def kept(self, x: Array, dtype: str) -> Array:
        """Return values as stored; what is below the normal range becomes zero."""
        stored = super().kept(x, dtype)
        if stored.dtype.kind == "f" and stored.dtype.itemsize < 8:
            stored[np.abs(stored) < np.finfo(stored.dtype).tiny] = 0
        return stored


class Outliers(Exact):
    """A device that meets the acceptance rule: of 20,000 elements all but one or so are right, and that by 2⁻⁸ off.

    Which elements depends on their values alone.
    """

    def approx(self, function: str, x: Array) -> Array:
        """Return the function with its rare outliers."""
        exact = super().approx(function, x)
        return np.where(_rare(np.asarray(x), 5e-5), exact * (1 + 2.0**-8), exact)

    def matmul(self, a: Array, b: Array) -> Array:
        """Return the product with rare outliers."""
        exact = super().matmul(a, b)
        return np.where(_rare(exact, 5e-5), exact * (1 + 2.0**-8), exact)


def _terms_first(x: Array, axis: int | tuple[int, ...]) -> Array:
    """The terms of a sum on axis 0."""
    axes = tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))
    rest = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    return np.moveaxis(x, axes, range(len(axes))).reshape(-1, *rest)


DEVICES: dict[str, Exact] = {
    "ideal": Exact(),
    "imprecise": Imprecise(),
    "coarse": Imprecise(2.0),
    "outliers": Outliers(),
}


def _few_bits(x: Array, bits: int) -> Array:
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2.0**bits) / 2.0**bits, exponent)


def _rare(x: Array, share: float) -> Array:
    bits = np.asarray(x, np.float64).view(np.uint64)
    mixed = (bits * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return np.asarray(mixed < share * 2**24)


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """Data type and layouts of a stored tensor."""

    dtype: str = "float32"
    layout: str = "ND"
    origin: str = "ND"


PLAIN = Form()
IMAGE = Form("float16", "NC1HWC0", "NHWC")
CHANNELS = Form("float32", "NC1HWC0", "NHWC")


@dataclass(eq=False)
class Tensor:
    """A tensor on some ranks: the device's values and the benchmark's, in the origin layout."""

    op: str
    index: int
    device: Ranked
    bench: Ranked
    form: Form
    golden: tuple[str, int] | None
    named: bool = True
    address: int = 0

    @property
    def ranks(self) -> list[int]:
        """The ranks that have it."""
        return list(self.device)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, which is the same on all ranks."""
        return next(iter(self.device.values())).shape

    def stored(self, rank: int) -> Array:
        """The values of a rank in storage order."""
        return pack(self.device[rank], self.form.layout, self.form.origin)

    def on(self, ranks: Iterable[int]) -> Tensor:
        """The same tensor of fewer ranks."""
        chosen = list(ranks)
        return replace(self, device={r: self.device[r] for r in chosen}, bench={r: self.bench[r] for r in chosen})

    def desc(self, rank: int, as_input: bool) -> TensorDesc:
        """The tensor as the graph of a rank describes it."""
        array = self.device[rank]
        op, index = self.golden if self.golden and self.named and not as_input else (None, None)
        return TensorDesc(
            dtype=array.dtype.name,
            layout=self.form.layout,
            shape=self.stored(rank).shape,
            origin_layout=self.form.origin,
            origin_shape=array.shape,
            dump_origin_name=op,
            dump_origin_index=index,
            dump_origin_layout=self.form.origin if op else None,
        )


@dataclass(frozen=True)
class Struck:
    """What a fault may look at: the op's inputs on this rank and on all, its outputs of the step before."""

    rank: int
    step: int
    inputs: tuple[Array, ...]
    of_all: Mapping[int, tuple[Array, ...]]
    group: tuple[int, ...]
    before: tuple[Array, ...] | None


@dataclass(frozen=True)
class Fault:
    """What an op's outputs become on some ranks (None: all) in some steps (None: all)."""

    op: str
    spoil: Callable[[list[Array], Struck], None]
    ranks: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None

    def strikes(self, op: str, rank: int, step: int) -> bool:
        """Return True if it is active."""
        return (
            op == self.op and (self.ranks is None or rank in self.ranks) and (self.steps is None or step in self.steps)
        )


# --- the job ----------------------------------------------------------------------------------------------------------


Attrs = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
Formula = Callable[..., Any]
_ITSELF = ("",)


@dataclass(eq=False)
class Job:
    """All ranks of a training. A network calls `op` and the collectives; `end_step` begins the next step.

    `bound` are names of variables that get another start on some ranks: (variable, rank) → function of the values.
    """

    ranks: int
    device: Exact
    sink: Writer
    seed: int = 0
    faults: Sequence[Fault] = ()
    #: (variable, rank) → what its device makes of the first values.
    starts: Mapping[tuple[str, int], Callable[[Array], Array]] = field(default_factory=dict)
    #: Attributes that one rank's script gives an op: (op, rank) → attributes.
    own_attrs: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    step: int = 0
    variables: dict[str, tuple[Ranked, Ranked]] = field(default_factory=dict)
    _updated: dict[str, tuple[Ranked, Ranked]] = field(default_factory=dict)
    _before: dict[tuple[str, int], tuple[Array, ...]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _ids: Counter[int] = field(default_factory=Counter)
    _next_address: int = _MEMORY_START
    struck: set[tuple[int, int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._bench = Host()

    @property
    def all(self) -> list[int]:
        """All ranks."""
        return list(range(self.ranks))

    def number(self, kind: str) -> int:
        """Return how many of a kind came before."""
        self._counts[kind] += 1
        return self._counts[kind] - 1

    def end_step(self) -> None:
        """Take over the updated variables."""
        for name, sides in self._updated.items():
            for side, new in zip(self.variables[name], sides, strict=True):
                side.update(new)
        self._updated.clear()
        self._counts.clear()
        self._ids.clear()
        self._next_address = _MEMORY_START
        self.step += 1

    def op(
        self,
        kind: str,
        name: str,
        formula: Formula | None,
        inputs: Sequence[Tensor],
        forms: Sequence[Form] = (PLAIN,),
        attrs: Attrs | None = None,
        *,
        results: Sequence[tuple[Ranked, Ranked]] | None = None,
        group: Mapping[int, tuple[int, ...]] | None = None,
        originals: tuple[str, ...] | None = _ITSELF,
        dumped: bool = True,
        library: str = AI_CORE,
        shares: Tensor | None = None,
        by_rank: bool = False,
        named_outputs: int = 99,
    ) -> tuple[Tensor, ...]:
        """Run an op on the ranks of its inputs and write it.

        `formula` takes the arithmetic and the inputs in float64 (with `by_rank` the rank before), and returns one
        output or several. `results` are there in place of it. `originals` are ops of the script, by default this one.
        """
        of_first = inputs[0].ranks if inputs else list(results[0][0]) if results else []
        ranks = [rank for rank in of_first if all(rank in tensor.device for tensor in inputs)]
        if originals is _ITSELF:
            originals = (name,)
        last = originals[-1] if originals else None
        outputs = [
            Tensor(name, i, {}, {}, form, None if last is None or i >= named_outputs else (last, i))
            for i, form in enumerate(forms)
        ]
        of_all = {r: tuple(t.device[r] for t in inputs) for r in ranks}
        for rank in ranks:
            if results is not None:
                device, bench = [side[0][rank] for side in results], [side[1][rank] for side in results]
            else:
                assert formula is not None
                lead = (rank,) if by_rank else ()
                device = _several(formula(*lead, self.device, *(_wide(t.device[rank]) for t in inputs)))
                bench = _several(formula(*lead, self._bench, *(_wide(t.bench[rank]) for t in inputs)))
            device = [self.device.kept(x, form.dtype) for x, form in zip(device, forms, strict=True)]
            for fault in self.faults:
                if fault.strikes(name, rank, self.step):
                    device = [x.copy() for x in device]
                    seen = Struck(
                        rank,
                        self.step,
                        of_all[rank],
                        of_all,
                        (group or {}).get(rank, ()),
                        self._before.get((name, rank)),
                    )
                    fault.spoil(device, seen)
                    self.struck.add((self.step, rank, name))
            self._before[name, rank] = tuple(device)
            for tensor, x, y in zip(outputs, device, bench, strict=True):
                tensor.device[rank] = x
                tensor.bench[rank] = np.asarray(y, "float32" if tensor.form.dtype == "float16" else tensor.form.dtype)
        size = 0
        for tensor in outputs:
            tensor.address = shares.address if shares else self._next_address + size
            largest = max((tensor.stored(r).nbytes for r in ranks), default=0)
            size += (largest + 32 + _MEMORY_STEP - 1) // _MEMORY_STEP * _MEMORY_STEP
        if shares is None:
            self._next_address += size
        for rank in ranks:
            own = dict((attrs(rank) if callable(attrs) else attrs) or {}) | dict(self.own_attrs.get((name, rank), {}))
            op = Op(
                name=name,
                type=kind,
                id=self._ids[rank],
                inputs=tuple(Edge(producer=t.op, index=t.index) for t in inputs),
                input_descs=tuple(t.desc(rank, True) for t in inputs),
                output_descs=tuple(t.desc(rank, False) for t in outputs),
                original_names=originals,
                kernel_lib=library,
                attrs=own,
            )
            self._ids[rank] += 1
            self.sink.take(rank, self.step, op, inputs, outputs, dumped)
        return tuple(outputs)

    def variable(
        self, name: str, first: Callable[[int], Array], ranks: Sequence[int] | None = None, form: Form = PLAIN
    ) -> Tensor:
        """A variable with its values at this step; `first` gives those of a rank at the start."""
        if name not in self.variables:
            chosen = self.all if ranks is None else list(ranks)
            bench = {r: first(r).astype(form.dtype) for r in chosen}
            device = {
                r: self.starts[name, r](x.copy()).astype(form.dtype) if (name, r) in self.starts else x.copy()
                for r, x in bench.items()
            }
            self.variables[name] = device, bench
        device, bench = self.variables[name]
        return self.op(
            "Variable",
            name,
            None,
            (),
            (form,),
            results=[(dict(device), dict(bench))],
            originals=None,
            dumped=False,
            library=GE_LOCAL,
        )[0]

    def constant(
        self, name: str, value: Array | float, ranks: Sequence[int] | None = None, dtype: str = "float32"
    ) -> Tensor:
        """A `Const`."""
        each = {r: np.asarray(value, dtype) for r in (self.all if ranks is None else ranks)}
        return self.op(
            "Const", name, None, (), (Form(dtype),), results=[(each, dict(each))], dumped=False, library=GE_LOCAL
        )[0]

    def fed(
        self, name: str, device: Sequence[Ranked], bench: Sequence[Ranked], forms: Sequence[Form]
    ) -> tuple[Tensor, ...]:
        """The data of the step, of an iterator. It has no inputs."""
        return self.op(
            "GetNext", name, None, (), forms, results=list(zip(device, bench, strict=True)), library=GE_LOCAL
        )

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """A `Cast` of the compiler."""
        attrs = {"dst_type": {"float32": 0, "float16": 1}[dtype], "truncate": False}
        name = f"trans_Cast_{self.number('cast')}"
        form = replace(x.form, dtype=dtype)
        cast = self.op("Cast", name, lambda _, a: a, [x], (form,), attrs, originals=())[0]
        return self._by_compiler(cast, x)

    def trans_data(self, x: Tensor, layout: str) -> Tensor:
        """A `TransData` of the compiler: the same values in another layout."""
        name = f"trans_TransData_{self.number('transdata')}"
        attrs = {"src_format": x.form.layout, "dst_format": layout, "groups": 1}
        done = self.op("TransData", name, lambda _, a: a, [x], (replace(x.form, layout=layout),), attrs, originals=())[
            0
        ]
        return self._by_compiler(done, x)

    @staticmethod
    def _by_compiler(done: Tensor, x: Tensor) -> Tensor:
        done.golden, done.named = x.golden, False
        return done

    def reshape(self, name: str, x: Tensor, shape: tuple[int, ...], layout: str = "ND") -> Tensor:
        """Another shape for the same bytes: not dumped."""
        return self.op(
            "Reshape",
            name,
            lambda _, a: a.reshape(shape),
            [x],
            (Form(x.form.dtype, layout, layout),),
            dumped=False,
            library=GE_LOCAL,
            shares=x,
        )[0]

    def assign(self, variable: Tensor, new: Tensor) -> None:
        """Take `new` for the variable's values of the next step."""
        self._updated[variable.op] = (dict(new.device), dict(new.bench))

    # --- communication ---

    def all_reduce(
        self, name: str, x: Tensor, groups: Sequence[Sequence[int]], group_names: str | Sequence[str] = WORLD
    ) -> Tensor:
        """The sum over each group, part after part round its ring: the same bits on all its ranks."""
        return self._collective(
            "HcomAllReduce",
            name,
            x,
            groups,
            group_names,
            _ring_sums,
            {"reduction": "sum", "fusion": 1, "fusion_id": -1},
        )

    def all_gather(
        self, name: str, x: Tensor, groups: Sequence[Sequence[int]], group_names: str | Sequence[str] = WORLD
    ) -> Tensor:
        """The parts of all ranks of a group, one after the other on axis 0."""
        return self._collective(
            "HcomAllGather",
            name,
            x,
            groups,
            group_names,
            lambda parts, kept: [np.concatenate(parts)] * len(parts),
            {"rank_size": len(groups[0])},
        )

    def reduce_scatter(
        self, name: str, x: Tensor, groups: Sequence[Sequence[int]], group_names: str | Sequence[str] = WORLD
    ) -> Tensor:
        """Of the sum over a group each rank's part of axis 0."""

        def parts(arrays: Sequence[Array], kept: Callable[[Array], Array]) -> list[Array]:
            return list(np.split(_ring_sums(arrays, kept)[0], len(arrays)))

        return self._collective(
            "HcomReduceScatter", name, x, groups, group_names, parts, {"reduction": "sum", "rank_size": len(groups[0])}
        )

    def all_to_all(
        self, name: str, x: Tensor, groups: Sequence[Sequence[int]], group_names: str | Sequence[str] = WORLD
    ) -> Tensor:
        """Part i of axis 0 goes to rank i of the group."""

        def exchange(arrays: Sequence[Array], kept: Callable[[Array], Array]) -> list[Array]:
            cut = [np.split(a, len(arrays)) for a in arrays]
            return [np.concatenate([of[i] for of in cut]) for i in range(len(arrays))]

        return self._collective("HcomAllToAll", name, x, groups, group_names, exchange, {"rank_size": len(groups[0])})

    def broadcast(
        self, name: str, x: Tensor, groups: Sequence[Sequence[int]], group_names: str | Sequence[str] = WORLD
    ) -> Tensor:
        """What the first rank of each group has."""
        return self._collective(
            "HcomBroadcast", name, x, groups, group_names, lambda parts, kept: [parts[0]] * len(parts), {"root_rank": 0}
        )

    def _collective(
        self,
        kind: str,
        name: str,
        x: Tensor,
        groups: Sequence[Sequence[int]],
        names: str | Sequence[str],
        exchange: Callable[[Sequence[Array], Callable[[Array], Array]], list[Array]],
        attrs: Mapping[str, Any],
    ) -> Tensor:
        device: Ranked = {}
        bench: Ranked = {}
        of: dict[int, tuple[int, ...]] = {}
        named: dict[int, str] = {}
        for number, group in enumerate(groups):
            mine = exchange([x.device[r] for r in group], lambda a: self.device.kept(a, x.form.dtype))
            theirs = exchange([x.bench[r] for r in group], lambda a: a.astype(np.float32))
            for r, a, b in zip(group, mine, theirs, strict=True):
                device[r], bench[r], of[r] = a, b, tuple(group)
                named[r] = names if isinstance(names, str) else names[number]
        x = x.on(sorted(device))
        return self.op(
            kind,
            name,
            None,
            [x],
            (x.form,),
            lambda r: dict(attrs) | {"group": named[r]},
            results=[(device, bench)],
            group=of,
            library=HCCL,
        )[0]

    def send(self, name: str, x: Tensor, pairs: Mapping[int, int], group: str = WORLD, tag: int = 0) -> Tensor:
        """Move a tensor from ranks to others: HcomSend there, HcomReceive here."""
        x = x.on(sorted(pairs))
        self.op(
            "HcomSend",
            f"{name}/HcomSend",
            None,
            [x],
            (),
            lambda r: {"group": group, "sr_tag": tag, "dest_rank": pairs[r]},
            results=[],
            library=HCCL,
        )
        back = {dest: source for source, dest in pairs.items()}
        form = x.form
        shape = x.shape
        return self.op(
            "HcomReceive",
            f"{name}/HcomReceive",
            None,
            (),
            (form,),
            lambda r: {
                "group": group,
                "sr_tag": tag,
                "src_rank": back[r],
                "shape": (int, shape),
                "dtype": 0 if form.dtype == "float32" else 1,
            },
            results=[({d: x.device[s] for d, s in back.items()}, {d: x.bench[s] for d, s in back.items()})],
            library=HCCL,
        )[0]


def _ring_sums(arrays: Sequence[Array], kept: Callable[[Array], Array]) -> list[Array]:
    """The sum: each of n parts goes round the ring from another rank on, and is stored on each."""
    count = len(arrays)
    flat = [np.asarray(a).reshape(-1) for a in arrays]
    total = np.empty_like(flat[0])
    with np.errstate(invalid="ignore", over="ignore"):
        for part, places in enumerate(np.array_split(np.arange(flat[0].size), count)):
            running = flat[part][places]
            for turn in range(1, count):
                running = kept(running + flat[(part + turn) % count][places])
            total[places] = running
    return [total.reshape(np.asarray(arrays[0]).shape)] * count


def _several(result: Any) -> list[Array]:
    return [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


# --- writing ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Writer:
    """Writes the folders that GE makes, `npu/debug_0/{dump,graph}`, and the benchmark's; eight devices a server.

    `with_bench` are ranks with a benchmark. `first_steps` is the number of a rank's first step, else 0.
    """

    root: Path
    ranks: int
    with_bench: frozenset[int] = frozenset()
    statistics: bool = False
    first_steps: Mapping[int, int] = field(default_factory=dict)
    devices_of_server: int = 8
    first_device: int = 0
    #: Process numbers of ranks: not in the order of the devices on a real machine.
    pids: Sequence[int] = ()
    ops: defaultdict[int, list[Op]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[tuple[int, str, int], int] = field(default_factory=dict)
    _tasks: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def stamp(self) -> str:
        """The time of the run."""
        return f"{_START:%Y%m%d%H%M%S}"

    @property
    def data(self) -> list[str]:
        """The data folders, below the root."""
        servers = -(-self.ranks // self.devices_of_server)
        return [f"server_{n}" for n in range(servers)] if servers > 1 else ["data"]

    def place(self, rank: int) -> tuple[Path, int]:
        """Return the data folder and the device of a rank."""
        server, device = divmod(rank, self.devices_of_server)
        return self.root / self.data[server], device + self.first_device

    def dump_dir(self, rank: int, step: int) -> Path:
        """Return the folder of a step's dump files."""
        folder, device = self.place(rank)
        number = step + self.first_steps.get(rank, 0)
        return folder / "npu/debug_0/dump" / self.stamp / str(device) / model_name(self.stamp) / "1" / str(number)

    def golden_dir(self, rank: int, step: int) -> Path:
        """Return the folder of the benchmark of a step."""
        return self.place(rank)[0] / f"tf/dump/rank_{rank}/step_{step}"

    def graph_dir(self, rank: int) -> Path:
        """Return the folder of a rank's graphs."""
        folder, device = self.place(rank)
        pid = self.pids[rank] if self.pids else 4200 + rank
        return folder / f"npu/debug_0/graph/pid_{pid}_deviceid_{device}"

    def take(
        self, rank: int, step: int, op: Op, inputs: Sequence[Tensor], outputs: Sequence[Tensor], dumped: bool
    ) -> None:
        """Write the files of an op."""
        if step == 0:
            self.ops[rank].append(op)
            for tensor in outputs:
                self.offsets[rank, tensor.op, tensor.index] = tensor.address - _MEMORY_START
        self._tasks[rank, step] += 1
        task = self._tasks[rank, step]
        clock = int(_START.timestamp() * 1e6) + (step + 2) * 1_000_000 + rank * 1700 + task * 400
        if rank in self.with_bench:
            folder = self.golden_dir(rank, step)
            folder.mkdir(parents=True, exist_ok=True)
            for tensor in outputs:
                if op.type == "Variable":
                    names = [op.name, f"{op.name}/read"]
                elif op.original_names and tensor.golden:
                    names = [tensor.golden[0]]
                else:
                    names = []
                for name in names:
                    write_golden(
                        folder / golden_file_name(name, tensor.index, clock - 3_600_000_000), tensor.bench[rank]
                    )
        if not dumped:
            return
        folder = self.dump_dir(rank, step)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / dump_file_name(op.type, op.name, task, clock, stream_id=0)
        ins, outs = [_out(t, rank) for t in inputs], [_out(t, rank) for t in outputs]
        if self.statistics:
            write_statistics(path.with_name(path.name + ".csv"), ins, outs)
        else:
            write_dump(path, op.name, ins, outs, dump_time=clock)

    def write_graphs(self) -> None:
        """Write the graphs of each rank; those of one content are links to the first's files."""
        written: dict[str, Path] = {}
        for rank in range(self.ranks):
            folder = self.graph_dir(rank)
            ops = self.ops[rank]
            key = json.dumps(
                [
                    (o.name, o.type, repr(dict(o.attrs)), repr(o.input_descs), repr(o.output_descs), repr(o.inputs))
                    for o in ops
                ]
            )
            if key in written:
                shutil.copytree(written[key], folder)
                continue
            folder.mkdir(parents=True)
            offsets = {(op, i): at for (r, op, i), at in self.offsets.items() if r == rank}
            write_graphs(folder, self.stamp, ops, offsets, 1)
            written[key] = folder


def _out(tensor: Tensor, rank: int) -> OutTensor:
    original = tensor.golden if tensor.golden and tensor.named else None
    return OutTensor.packed(
        tensor.device[rank], tensor.form.layout, tensor.form.origin, address=tensor.address, original_op=original
    )
