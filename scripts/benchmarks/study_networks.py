"""The networks of the studies: an MLP with Adam, a transformer, a convolutional net with batch norm, a recurrent net
whose embedding is sharded, tensor-parallel pairs, a pipeline, and experts. Each trains one step of a `Job`.

Layers note their backward on a tape; the formulas are written here from the papers and GE's prototypes, in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from study_machine import CHANNELS, IMAGE, PLAIN, WORLD, Exact, Form, Job, Tensor

from precision_tool.lib.demo.dump_writer import Array

_OPTIMIZER = "NPUDistributedOptimizer"
Gradients = Sequence[Tensor | None]
Groups = Sequence[Sequence[int]]
Shard = Callable[[int], int]


@dataclass(eq=False)
class Feeding:
    """What each rank's script feeds: the seed of its data by (rank, step), its learning rate, how its data are made."""

    seed: int
    same_batch: bool = False
    #: rank → learning rate of its device.
    rates: dict[int, float] = field(default_factory=dict)
    #: The step from which on they have it.
    rates_from: int = 0
    #: (rank, step) → what its device gets of the right data.
    data: dict[int, Callable[[int, Array], Array]] = field(default_factory=dict)
    rate: float = 0.05
    #: Which of the batches a rank has: its own, or one for several.
    replica: Callable[[int], int] = int

    def rng(self, rank: int, step: int) -> np.random.Generator:
        """The generator of a rank's batch."""
        return np.random.default_rng([self.seed, 5, 0 if self.same_batch else self.replica(rank), step])

    def given(self, rank: int, step: int, array: Array) -> Array:
        """What the device of a rank gets of its data."""
        return self.data[rank](step, array).astype(array.dtype) if rank in self.data else array


@dataclass(eq=False)
class Net:
    """The tape of one step. `half` computes in float16, as mixed precision does."""

    job: Job
    feeding: Feeding
    half: bool = False
    tape: list[tuple[tuple[Tensor, ...], list[Tensor], Callable[[Tensor], Gradients]]] = field(default_factory=list)
    gradients: dict[str, list[Tensor]] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    @property
    def form(self) -> Form:
        """Data type of activations."""
        return Form("float16" if self.half else "float32")

    # --- variables and data ---

    def weights(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        gain: float = 1.0,
        ranks: Sequence[int] | None = None,
        own: Shard | None = None,
        form: Form = PLAIN,
        fill: float | None = None,
    ) -> Tensor:
        """A trained variable; `own` is which shard or expert a rank has, which starts with values of its own."""

        def first(rank: int) -> Array:
            rng = np.random.default_rng([self.job.seed, 9, sum(map(ord, name)), own(rank) + 1 if own else 0])
            if fill is not None:
                return np.full(shape, fill) + 0.02 * rng.standard_normal(shape)
            return np.asarray(rng.standard_normal(shape) * gain / np.sqrt(max(1, int(np.prod(shape[:-1])))))

        if name not in self.parameters:
            self.parameters[name] = self.job.variable(name, first, ranks, form)
        return self.parameters[name]

    def batch(
        self,
        make: Callable[[np.random.Generator], Sequence[Array]],
        forms: Sequence[Form],
        ranks: Sequence[int] | None = None,
        name: str = "IteratorGetNext",
    ) -> tuple[Tensor, ...]:
        """The batch of each rank."""
        job = self.job
        chosen = job.all if ranks is None else ranks
        made = {r: list(make(self.feeding.rng(r, job.step))) for r in chosen}
        count = len(forms)
        bench = [{r: made[r][i] for r in chosen} for i in range(count)]
        device = [
            {r: self.feeding.given(r, job.step, x) if i == 0 else x for r, x in side.items()}
            for i, side in enumerate(bench)
        ]
        return job.fed(name, device, bench, forms)

    def usable(self, variable: Tensor) -> Tensor:
        """A variable as the matrix unit takes it."""
        return self.job.cast(variable, "float16") if self.half else variable

    def wide(self, x: Tensor) -> Tensor:
        """A gradient in float32."""
        return self.job.cast(x, "float32") if x.form.dtype == "float16" else x

    def note(
        self, outputs: Tensor | tuple[Tensor, ...], inputs: list[Tensor], backward: Callable[[Tensor], Gradients]
    ) -> None:
        """Note how the gradient of an output becomes those of inputs."""
        self.tape.append((outputs if isinstance(outputs, tuple) else (outputs,), inputs, backward))

    # --- layers ---

    def dense(
        self,
        name: str,
        x: Tensor,
        width: int,
        *,
        gain: float = 1.0,
        own: Shard | None = None,
        bias: bool = True,
        of: str = "",
    ) -> Tensor:
        """MatMul and BiasAdd: fused in float16, two ops in float32. `of` names the variables, if not `name`."""
        job, form = self.job, self.form
        variables = of or name
        kernel = self.weights(f"{variables}/kernel", (x.shape[-1], width), gain=gain, ranks=x.ranks, own=own)
        taken = self.usable(kernel)
        plain = {"transpose_x1": False, "transpose_x2": False}
        grad_name = f"gradients/{name}"
        if bias:
            offset = self.weights(f"{variables}/bias", (width,), gain=0.1, ranks=x.ranks, own=own)
        if bias and self.half:
            names = (f"{name}/MatMul", f"{name}/BiasAdd")
            y = job.op(
                "MatMulV2",
                "".join(names),
                lambda m, a, w, b: m.matmul(a, w) + b,
                [x, taken, self.usable(offset)],
                (form,),
                plain,
                originals=names,
            )[0]
        else:
            y = job.op("MatMulV2", f"{name}/MatMul", lambda m, a, w: m.matmul(a, w), [x, taken], (form,), plain)[0]
            if bias:
                y = job.op(
                    "BiasAdd", f"{name}/BiasAdd", lambda _, a, b: a + b, [y, offset], (form,), {"data_format": "NHWC"}
                )[0]

        def backward(grad: Tensor) -> Gradients:
            if bias:
                db = job.op(
                    "BiasAddGrad",
                    f"{grad_name}/BiasAdd_grad/BiasAddGrad",
                    lambda m, g: m.total(g, 0),
                    [grad],
                    (form,),
                    {"data_format": "NHWC"},
                )[0]
                self.learn(offset, db)
            dw = job.op(
                "MatMulV2",
                f"{grad_name}/MatMul_grad/MatMul_1",
                lambda m, a, g: m.matmul(a.T, g),
                [x, grad],
                (form,),
                plain | {"transpose_x1": True},
            )[0]
            self.learn(kernel, dw)
            dx = job.op(
                "MatMulV2",
                f"{grad_name}/MatMul_grad/MatMul",
                lambda m, g, w: m.matmul(g, w.T),
                [grad, taken],
                (form,),
                plain | {"transpose_x2": True},
            )[0]
            return [dx]

        self.note(y, [x], backward)
        return y

    def unary(
        self,
        kind: str,
        name: str,
        x: Tensor,
        formula: Callable[[Exact, Array], Array],
        gradient: Callable[..., Array],
        takes: str,
        attrs: dict[str, Any] | None = None,
    ) -> Tensor:
        """An activation; `takes` are the inputs of its gradient op: d (gradient), x, y."""
        y = self.job.op(kind, f"{name}/{kind}", formula, [x], (x.form,), attrs)[0]

        def backward(grad: Tensor) -> Gradients:
            inputs = [{"d": grad, "x": x, "y": y}[letter] for letter in takes]
            return [
                self.job.op(f"{kind}Grad", f"gradients/{name}/{kind}_grad/{kind}Grad", gradient, inputs, (x.form,))[0]
            ]

        self.note(y, [x], backward)
        return y

    def relu(self, name: str, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return self.unary("Relu", name, x, lambda _, a: np.maximum(a, 0), lambda _, g, y: np.where(y > 0, g, 0), "dy")

    def tanh(self, name: str, x: Tensor) -> Tensor:
        """The hyperbolic tangent."""
        return self.unary("Tanh", name, x, lambda m, a: m.approx("tanh", a), lambda _, y, g: g * (1 - y * y), "yd")

    def gelu(self, name: str, x: Tensor) -> Tensor:
        """Gelu in the form with tanh."""

        def inner(a: Array) -> Array:
            return np.asarray(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))

        def formula(m: Exact, a: Array) -> Array:
            return a * m.approx("reciprocal", 1 + m.approx("exp", -2 * inner(a)))

        def gradient(m: Exact, g: Array, a: Array, y: Array) -> Array:
            t = m.approx("tanh", inner(a))
            slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * a * a)
            return np.asarray(g * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * slope))

        return self.unary("Gelu", name, x, formula, gradient, "dxy")

    def layer_norm(self, name: str, x: Tensor, epsilon: float = 1e-12) -> Tensor:
        """LayerNorm over the last axis of a matrix."""
        job, width = self.job, x.shape[-1]
        gamma = self.weights(f"{name}/gamma", (width,), fill=1.0, ranks=x.ranks)
        beta = self.weights(f"{name}/beta", (width,), fill=0.0, ranks=x.ranks)
        attrs = {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": epsilon}
        op_name = f"{name}/LayerNorm"

        def formula(rank: int, m: Exact, a: Array, g: Array, b: Array) -> tuple[Array, ...]:
            eps = float(job.own_attrs.get((op_name, rank), {}).get("epsilon", epsilon))
            mean = m.total(a, 1)[:, None] / width
            variance = m.total((a - mean) ** 2, 1)[:, None] / width
            return (a - mean) * m.approx("rsqrt", variance + eps) * g + b, mean, variance

        small = self.form
        taken = [self.usable(gamma), self.usable(beta)]
        y, mean, variance = job.op(
            "LayerNorm", op_name, formula, [x, *taken], (x.form, small, small), attrs, by_rank=True
        )

        def backward(grad: Tensor) -> Gradients:
            prefix = f"gradients/{name}/LayerNorm_grad"

            def by_x(m: Exact, d: Array, a: Array, v: Array, mu: Array, g: Array) -> Array:
                root = m.approx("rsqrt", v + epsilon)
                xhat, dh = (a - mu) * root, d * g
                return root * (dh - m.total(dh, 1)[:, None] / width - xhat * m.total(dh * xhat, 1)[:, None] / width)

            def by_parameters(m: Exact, d: Array, a: Array, v: Array, mu: Array) -> tuple[Array, Array]:
                return m.total(d * (a - mu) * m.approx("rsqrt", v + epsilon), 0), m.total(d, 0)

            dx = job.op(
                "LayerNormXBackprop",
                f"{prefix}/LayerNormXBackprop",
                by_x,
                [grad, x, variance, mean, taken[0]],
                (x.form,),
            )[0]
            dg, db = job.op(
                "LayerNormBetaGammaBackprop",
                f"{prefix}/LayerNormBetaGammaBackprop",
                by_parameters,
                [grad, x, variance, mean],
                (PLAIN, PLAIN),
                {"shape_gamma": (int, (width,))},
            )
            self.learn(gamma, dg)
            self.learn(beta, db)
            return [dx]

        self.note(y, [x], backward)
        return y

    def batch_product(self, name: str, a: Tensor, b: Tensor, turn_b: bool) -> Tensor:
        """BatchMatMul a·b or a·bᵀ."""
        job, form = self.job, self.form

        def turned(x: Array, turn: bool) -> Array:
            return np.swapaxes(x, -1, -2) if turn else x

        def product(label: str, x: Tensor, y: Tensor, tx: bool, ty: bool) -> Tensor:
            return job.op(
                "BatchMatMul",
                label,
                lambda m, p, q: m.matmul(turned(p, tx), turned(q, ty)),
                [x, y],
                (form,),
                {"adj_x1": tx, "adj_x2": ty},
            )[0]

        y = product(f"{name}/MatMul", a, b, False, turn_b)
        prefix = f"gradients/{name}/MatMul_grad"

        def backward(grad: Tensor) -> Gradients:
            da = product(f"{prefix}/MatMul", grad, b, False, not turn_b)
            db = (
                product(f"{prefix}/MatMul_1", grad, a, True, False)
                if turn_b
                else product(f"{prefix}/MatMul_1", a, grad, True, False)
            )
            return [da, db]

        self.note(y, [a, b], backward)
        return y

    def softmax(self, name: str, x: Tensor) -> Tensor:
        """Softmax over the last axis."""

        def formula(m: Exact, a: Array) -> Array:
            e = m.approx("exp", a - a.max(axis=-1, keepdims=True))
            return e * m.approx("reciprocal", m.total(e, -1)[..., None])

        y = self.job.op("SoftmaxV2", f"{name}/Softmax", formula, [x], (x.form,), {"axes": (int, (-1,))})[0]

        def gradient(m: Exact, s: Array, g: Array) -> Array:
            return (g - m.total(g * s, -1)[..., None]) * s

        self.note(
            y,
            [x],
            lambda grad: [
                self.job.op(
                    "SoftmaxGrad",
                    f"gradients/{name}/Softmax_grad/SoftmaxGrad",
                    gradient,
                    [y, grad],
                    (x.form,),
                    {"axes": (int, (-1,))},
                )[0]
            ],
        )
        return y

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """The sum of two tensors."""
        y = self.job.op("Add", f"{name}/add", lambda _, p, q: p + q, [a, b], (a.form,))[0]
        self.note(y, [a, b], lambda grad: [grad, grad])
        return y

    def scaled(self, name: str, x: Tensor, factor: float) -> Tensor:
        """The tensor times a constant."""
        y = self.job.op(
            "Muls",
            f"{name}/mul",
            lambda _, a: a * np.float32(factor),
            [x],
            (x.form,),
            {"value": float(np.float32(factor))},
        )[0]
        self.note(
            y,
            [x],
            lambda grad: [
                self.job.op(
                    "Muls",
                    f"gradients/{name}/mul_grad/Mul",
                    lambda _, a: a * np.float32(factor),
                    [grad],
                    (x.form,),
                    {"value": float(np.float32(factor))},
                )[0]
            ],
        )
        return y

    def reshaped(self, name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Another shape."""
        y, old = self.job.reshape(f"{name}/Reshape", x, shape), x.shape
        self.note(y, [x], lambda grad: [self.job.reshape(f"gradients/{name}/Reshape_grad/Reshape", grad, old)])
        return y

    def embedding(self, name: str, table: Tensor, ids: Tensor, noted: bool = True) -> Tensor:
        """Rows of a table."""
        job, rows = self.job, table.shape[0]
        axis = job.constant(f"{name}/axis", 0, ids.ranks, "int32")
        y = job.op(
            "GatherV2",
            f"{name}/GatherV2",
            lambda _, t, i, __: t[i.astype(int)],
            [table, ids, axis],
            (table.form,),
            {"batch_dims": 0},
        )[0]
        width = table.shape[1]

        def backward(grad: Tensor) -> Gradients:
            flat = job.reshape(f"gradients/{name}/Reshape", grad, (int(np.prod(ids.shape)), width))
            places = job.reshape(f"gradients/{name}/Reshape_1", ids, (int(np.prod(ids.shape)),))
            count = job.constant(f"gradients/{name}/num_segments", rows, ids.ranks, "int32")

            def segments(_: Exact, g: Array, i: Array, __: Array) -> Array:
                total = np.zeros((rows, width))
                np.add.at(total, i.astype(int), g)
                return total

            return [
                job.op(
                    "UnsortedSegmentSum",
                    f"gradients/{name}/UnsortedSegmentSum",
                    segments,
                    [flat, places, count],
                    (PLAIN,),
                )[0]
            ]

        self.note(y, [table], backward)
        return y

    def cross_entropy(self, name: str, logits: Tensor, labels: Tensor) -> None:
        """The loss, and the start of the backward pass."""
        job = self.job
        wide = self.wide(logits)
        rows = logits.shape[0]

        def formula(m: Exact, a: Array, i: Array) -> tuple[Array, Array]:
            i = i.astype(int)
            shifted = a - a.max(axis=1, keepdims=True)
            e = m.approx("exp", shifted)
            total = m.total(e, 1)
            loss = m.approx("log", total) - shifted[np.arange(rows), i]
            grad = e * m.approx("reciprocal", total)[:, None]
            grad[np.arange(rows), i] -= 1
            return loss, grad

        full = f"{name}/SparseSoftmaxCrossEntropyWithLogits"
        loss, backprop = job.op("SparseSoftmaxCrossEntropyWithLogits", full, formula, [wide, labels], (PLAIN, PLAIN))
        job.op(
            "ReduceMeanD",
            f"{name}/Mean",
            lambda m, a: m.total(a, 0) / rows,
            [loss],
            (PLAIN,),
            {"axes": (int, (0,)), "keep_dims": False},
        )
        grad = job.op(
            "Muls",
            f"gradients/{name}/mul",
            lambda _, a: a * np.float32(1 / rows),
            [backprop],
            (PLAIN,),
            {"value": float(np.float32(1 / rows))},
        )[0]
        if wide is not logits:
            grad = job.cast(grad, logits.form.dtype)
        self.backward(logits, grad)

    def backward(self, last: Tensor, grad: Tensor) -> None:
        """Run the tape backwards from the gradient of `last`; where several meet, AddN."""
        waiting: dict[int, list[Tensor]] = {id(last): [grad]}
        for outputs, inputs, back in reversed(self.tape):
            incoming = waiting.pop(id(outputs[0]), None)
            if not incoming:
                continue
            total = self.sum(incoming)
            for tensor, part in zip(inputs, back(total), strict=True):
                if part is not None:
                    waiting.setdefault(id(tensor), []).append(part)
        for variable in self.parameters.values():
            for part in waiting.get(id(variable), ()):
                self.learn(variable, part)

    # --- updates ---

    def learn(self, variable: Tensor, grad: Tensor) -> None:
        """Take a gradient of a variable, in float32."""
        self.gradients.setdefault(variable.op, []).append(self.wide(grad))

    def gradient(self, name: str) -> Tensor:
        """The gradient of a variable; of several the sum."""
        return self.sum(self.gradients[name])

    def sum(self, parts: list[Tensor]) -> Tensor:
        """The sum of tensors of one shape: AddN, where there are several."""
        if len(parts) == 1:
            return parts[0]
        name = f"gradients/AddN_{self.job.number('addn')}"
        return self.job.op(
            "AddN", name, lambda _, *each: sum(each[1:], each[0]), parts, (parts[0].form,), {"N": len(parts)}
        )[0]

    def averaged(self, name: str, grad: Tensor, groups: Groups, group_names: str | Sequence[str] = WORLD) -> Tensor:
        """The gradient's mean over each group."""
        total = self.job.all_reduce(f"{_OPTIMIZER}/allreduce_{name}/HcomAllReduce", grad, groups, group_names)
        return self.shared(name, total, len(groups[0]))

    def shared(self, name: str, total: Tensor, count: int) -> Tensor:
        """A sum divided by the number of ranks."""
        by = self.job.constant(f"{_OPTIMIZER}/count_{name}", float(count), total.ranks)
        return self.job.op(
            "RealDiv", f"{_OPTIMIZER}/truediv_{name}/RealDiv", lambda _, a, b: a / b, [total, by], (total.form,)
        )[0]

    def rate(self) -> Tensor:
        """The learning rate, which decays from step to step on the device."""
        job = self.job
        base = job.variable("learning_rate", lambda r: np.asarray(self.feeding.rate), None)
        changed = self.feeding.rates if job.step >= self.feeding.rates_from else {}
        for rank, value in changed.items():
            base.device[rank] = np.asarray(value, "float32")
        factor = job.constant("decay_rate", 0.98**job.step)
        return job.op("Mul", "learning_rate_decay/Mul", lambda _, a, b: a * b, [base, factor])[0]

    def sgd(self, variable: Tensor, grad: Tensor, rate: Tensor) -> None:
        """Gradient descent."""
        ranks = grad.ranks
        new = self.job.op(
            "ApplyGradientDescent",
            f"GradientDescent/update_{variable.op}/ApplyGradientDescent",
            lambda _, v, r, g: v - r * g,
            [variable.on(ranks), rate.on(ranks), grad],
            (variable.form,),
            {"use_locking": False},
            shares=variable,
        )[0]
        self.job.assign(variable, new)

    def momentum(self, variable: Tensor, grad: Tensor, rate: Tensor) -> None:
        """Gradient descent with momentum."""
        job, ranks = self.job, grad.ranks
        accum = job.variable(f"{variable.op}/Momentum", lambda r: np.zeros(variable.shape), ranks, variable.form)
        factor = job.constant(f"Momentum/momentum_{variable.op}", 0.9, ranks)

        def formula(_: Exact, v: Array, a: Array, r: Array, g: Array, f: Array) -> tuple[Array, Array]:
            held = a * f + g
            return v - r * held, held

        new, held = job.op(
            "ApplyMomentumD",
            f"Momentum/update_{variable.op}/ApplyMomentum",
            formula,
            [variable.on(ranks), accum, rate.on(ranks), grad, factor],
            (variable.form, variable.form),
            {"use_nesterov": False},
            shares=variable,
        )
        job.assign(variable, new)
        job.assign(accum, held)

    def adam(self, variable: Tensor, grad: Tensor, rate: Tensor) -> None:
        """Adam."""
        job, ranks = self.job, grad.ranks
        m, v = (
            job.variable(f"{variable.op}/Adam{end}", lambda r: np.zeros(variable.shape), ranks) for end in ("", "_1")
        )
        step = job.step + 1
        numbers = [
            job.constant(f"Adam/{label}_{variable.op}", value, ranks)
            for label, value in (("beta1_power", 0.9**step), ("beta2_power", 0.999**step))
        ]
        rest = [
            job.constant(f"Adam/{label}_{variable.op}", value, ranks)
            for label, value in (("beta1", 0.9), ("beta2", 0.999), ("epsilon", 1e-8))
        ]

        def formula(
            a: Exact,
            x: Array,
            m0: Array,
            v0: Array,
            p1: Array,
            p2: Array,
            r: Array,
            b1: Array,
            b2: Array,
            e: Array,
            g: Array,
        ) -> tuple[Array, ...]:
            m1 = m0 + (1 - b1) * (g - m0)
            v1 = v0 + (1 - b2) * (g * g - v0)
            size = r * a.approx("sqrt", 1 - p2) / (1 - p1)
            return x - size * m1 / (a.approx("sqrt", v1) + e), m1, v1

        new = job.op(
            "ApplyAdamD",
            f"Adam/update_{variable.op}/ApplyAdam",
            formula,
            [variable.on(ranks), m, v, *numbers, rate.on(ranks), *rest, grad],
            (PLAIN, PLAIN, PLAIN),
            {"use_locking": False, "use_nesterov": False},
            shares=variable,
        )
        for tensor, value in zip((variable, m, v), new, strict=True):
            job.assign(tensor, value)


def world(job: Job) -> list[list[int]]:
    """One group of all ranks."""
    return [job.all]


# --- the networks -----------------------------------------------------------------------------------------------------


#: The forms of what `rows_with_labels` draws.
ROWS_WITH_LABELS = (PLAIN, Form("int32"))


def rows_with_labels(count: int, width: int, classes: int) -> Callable[[np.random.Generator], list[Array]]:
    """Return what draws a batch: normal numbers of shape (count, width), and a class for each row."""
    return lambda rng: [rng.standard_normal((count, width)).astype("f4"), rng.integers(0, classes, count).astype("i4")]


def mlp_adam(job: Job, feeding: Feeding) -> None:
    """Three dense layers in float32, trained with Adam."""
    net = Net(job, feeding)
    x, labels = net.batch(rows_with_labels(12, 20, 7), ROWS_WITH_LABELS)
    h = net.gelu("fc1", net.dense("fc1", x, 40, gain=1.4))
    h = net.gelu("fc2", net.dense("fc2", h, 33, gain=1.4))
    net.cross_entropy("loss", net.dense("logits", h, 7, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        net.adam(variable, net.averaged(name, net.gradient(name), world(job)), rate)


_TOKENS, _SENTENCES, _WIDTH, _VOCABULARY = 6, 3, 32, 40


def _tokens(rng: np.random.Generator) -> list[Array]:
    shape = _SENTENCES, _TOKENS
    return [
        rng.integers(0, _VOCABULARY, shape).astype("i4"),
        rng.integers(0, _VOCABULARY, shape[0] * shape[1]).astype("i4"),
    ]


def _attention(net: Net, name: str, x: Tensor) -> Tensor:
    parts = [
        net.reshaped(f"{name}/{part}", net.dense(f"{name}/{part}", x, _WIDTH), (_SENTENCES, _TOKENS, _WIDTH))
        for part in ("query", "key", "value")
    ]
    scores = net.scaled(f"{name}/scores", net.batch_product(f"{name}/scores", parts[0], parts[1], True), _WIDTH**-0.5)
    mixed = net.batch_product(f"{name}/context", net.softmax(f"{name}/probs", scores), parts[2], False)
    flat = net.reshaped(f"{name}/context", mixed, (_SENTENCES * _TOKENS, _WIDTH))
    return net.dense(f"{name}/output", flat, _WIDTH)


def transformer(job: Job, feeding: Feeding, half: bool = True) -> None:
    """An embedding, a transformer block and a head, in float16 with momentum."""
    net = Net(job, feeding, half=half)
    ids, labels = net.batch(_tokens, (Form("int32"), Form("int32")))
    table = net.weights("embedding/table", (_VOCABULARY, _WIDTH), gain=6.0)
    rows = net.embedding("embedding", table, ids)
    x = net.reshaped("embedding/flat", rows, (_SENTENCES * _TOKENS, _WIDTH))
    if half:
        narrow = job.cast(x, "float16")
        net.note(narrow, [x], lambda grad: [job.cast(grad, "float32")])
        x = narrow
    x = net.layer_norm("norm1", net.add("attention", x, _attention(net, "attention", x)))
    h = net.dense("ffn2", net.gelu("ffn1", net.dense("ffn1", x, 2 * _WIDTH)), _WIDTH)
    x = net.layer_norm("norm2", net.add("ffn", x, h))
    net.cross_entropy("loss", net.dense("head", x, _VOCABULARY, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        net.momentum(variable, net.averaged(name, net.gradient(name), world(job)), rate)


def _windows(images: Array) -> Array:
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)


def _conv(net: Net, name: str, x: Tensor, channels: int) -> Tensor:
    """A 3 × 3 convolution with padding, of images in NC1HWC0."""
    job = net.job
    batch, rows, cols, before = x.shape
    kernel = net.weights(f"{name}/kernel", (3, 3, before, channels), gain=1.4, form=Form("float32", "HWCN", "HWCN"))
    taken = job.trans_data(job.cast(kernel, "float16"), "FRACTAL_Z")
    ones = (int, (1, 1, 1, 1))
    attrs = {"data_format": "NHWC", "strides": ones, "dilations": ones, "pads": ones, "padding": "SAME"}

    def formula(m: Exact, a: Array, w: Array) -> Array:
        return m.matmul(_windows(a).reshape(-1, 9 * before), w.reshape(-1, channels)).reshape(
            batch, rows, cols, channels
        )

    def by_filter(m: Exact, a: Array, g: Array) -> Array:
        return m.matmul(_windows(a).reshape(-1, 9 * before).T, g.reshape(-1, channels)).reshape(3, 3, before, channels)

    def by_input(m: Exact, w: Array, g: Array) -> Array:
        turned = w[::-1, ::-1].transpose(0, 1, 3, 2).reshape(-1, before)
        return m.matmul(_windows(g).reshape(-1, 9 * channels), turned).reshape(batch, rows, cols, before)

    y = job.op("Conv2D", f"{name}/Conv2D", formula, [x, taken], (IMAGE,), attrs)[0]

    def backward(grad: Tensor) -> Gradients:
        prefix = f"gradients/{name}/Conv2D_grad"
        form = Form("float32", "FRACTAL_Z", "HWCN")
        dw = job.op("Conv2DBackpropFilter", f"{prefix}/Conv2DBackpropFilter", by_filter, [x, grad], (form,), attrs)[0]
        net.learn(kernel, job.trans_data(dw, "HWCN"))
        return [
            job.op("Conv2DBackpropInput", f"{prefix}/Conv2DBackpropInput", by_input, [taken, grad], (IMAGE,), attrs)[0]
        ]

    net.note(y, [x], backward)
    return y


def _batch_norm(net: Net, name: str, x: Tensor) -> Tensor:
    """Batch norm of images; its moving averages are each rank's own."""
    job, shape = net.job, (1, 1, 1, x.shape[-1])
    count, axes, epsilon, factor = int(np.prod(x.shape[:-1])), (0, 1, 2), 1e-3, 0.1
    scale = net.weights(f"{name}/gamma", shape, fill=1.0, form=CHANNELS)
    offset = net.weights(f"{name}/beta", shape, fill=0.0, form=CHANNELS)
    mean = job.variable(f"{name}/moving_mean", lambda r: np.zeros(shape), None, CHANNELS)
    variance = job.variable(f"{name}/moving_variance", lambda r: np.ones(shape), None, CHANNELS)
    full = f"{name}/FusedBatchNormV3"

    def sums(m: Exact, a: Array) -> tuple[Array, Array]:
        return m.total(a, axes).reshape(shape), m.total(a * a, axes).reshape(shape)

    def update(m: Exact, a: Array, s: Array, q: Array, g: Array, b: Array, mu: Array, v: Array) -> tuple[Array, ...]:
        now = s / count
        spread = q / count - now * now
        y = (a - now) * m.approx("rsqrt", spread + epsilon) * g + b
        unbiased = spread * count / (count - 1)
        return y, mu * (1 - factor) + now * factor, v * (1 - factor) + unbiased * factor, now, spread

    total, squares = job.op(
        "BNTrainingReduce", f"{full}_BNTrainingReduce", sums, [x], (CHANNELS, CHANNELS), originals=()
    )
    y, new_mean, new_variance, batch_mean, batch_variance = job.op(
        "BNTrainingUpdate",
        f"{full}_BNTrainingUpdate",
        update,
        [x, total, squares, scale, offset, mean, variance],
        (IMAGE, *(CHANNELS,) * 4),
        {"epsilon": epsilon, "factor": factor},
        originals=(full,),
        named_outputs=1,
    )
    job.assign(mean, new_mean)
    job.assign(variance, new_variance)

    def parameters(m: Exact, g: Array, a: Array, mu: Array, v: Array) -> tuple[Array, Array]:
        xhat = (a - mu) * m.approx("rsqrt", v + epsilon)
        return m.total(g * xhat, axes).reshape(shape), m.total(g, axes).reshape(shape)

    def by_x(m: Exact, g: Array, a: Array, ds: Array, db: Array, s: Array, mu: Array, v: Array) -> Array:
        root = m.approx("rsqrt", v + epsilon)
        return s * root * (g - db / count - (a - mu) * root * ds / count)

    def backward(grad: Tensor) -> Gradients:
        prefix = f"gradients/{full}_grad/FusedBatchNormGradV3"
        ds, db = job.op(
            "BNTrainingUpdateGrad",
            f"{prefix}_BNTrainingUpdateGrad",
            parameters,
            [grad, x, batch_mean, batch_variance],
            (CHANNELS, CHANNELS),
            {"epsilon": epsilon},
            originals=(),
        )
        net.learn(scale, ds)
        net.learn(offset, db)
        return [
            job.op(
                "BNTrainingReduceGrad",
                f"{prefix}_BNTrainingReduceGrad",
                by_x,
                [grad, x, ds, db, scale, batch_mean, batch_variance],
                (IMAGE,),
                {"epsilon": epsilon},
                originals=(prefix,),
            )[0]
        ]

    net.note(y, [x], backward)
    return y


def convnet(job: Job, feeding: Feeding) -> None:
    """Two convolutions with batch norm in float16, and a dense layer; momentum."""
    net = Net(job, feeding, half=True)
    images, labels = net.batch(
        lambda rng: [rng.standard_normal((4, 6, 6, 3)).astype("f4"), rng.integers(0, 5, 4).astype("i4")],
        (Form("float32", "NHWC", "NHWC"), Form("int32")),
    )
    x = job.trans_data(job.cast(images, "float16"), "NC1HWC0")
    for name, channels in (("conv1", 16), ("conv2", 20)):
        x = net.relu(f"{name}", _batch_norm(net, f"{name}/bn", _conv(net, name, x, channels)))
    batch, rows, cols, channels = x.shape
    plain = job.trans_data(x, "NHWC")
    net.note(plain, [x], lambda grad: [job.trans_data(grad, "NC1HWC0")])
    pooled = job.op(
        "ReduceMeanD",
        "pool/Mean",
        lambda m, a: m.total(a, (1, 2)) / (rows * cols),
        [plain],
        (Form("float16"),),
        {"axes": (int, (1, 2)), "keep_dims": False},
    )[0]

    def spread(grad: Tensor) -> Gradients:
        factor = float(np.float32(1 / (rows * cols)))
        part = job.op(
            "Muls",
            "gradients/pool/Mean_grad/truediv",
            lambda _, a: a * factor,
            [grad],
            (Form("float16"),),
            {"value": factor},
        )[0]
        image = job.reshape("gradients/pool/Mean_grad/Reshape", part, (batch, 1, 1, channels), "NHWC")
        form = Form("float16", "NHWC", "NHWC")
        return [
            job.op(
                "TileD",
                "gradients/pool/Mean_grad/Tile",
                lambda _, a: np.tile(a, (1, rows, cols, 1)),
                [image],
                (form,),
                {"multiples": (int, (1, rows, cols, 1))},
            )[0]
        ]

    net.note(pooled, [plain], spread)
    net.cross_entropy("loss", net.dense("logits", pooled, 5, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        net.momentum(variable, net.averaged(name, net.gradient(name), world(job)), rate)


def _slice(net: Net, name: str, x: Tensor, begin: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    """A block of a tensor; its gradient is PadD."""
    job = net.job
    place = tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))
    y = job.op(
        "SliceD", f"{name}/Slice", lambda _, a: a[place], [x], (x.form,), {"offsets": (int, begin), "size": (int, size)}
    )[0]
    pads = [(b, n - b - s) for b, s, n in zip(begin, size, x.shape, strict=True)]

    def backward(grad: Tensor) -> Gradients:
        # GE's paddings are a list of lists; flat here, as the writer has no such list.
        return [
            job.op(
                "Pad",
                f"gradients/{name}/Slice_grad/Pad",
                lambda _, a, __: np.pad(a, pads),
                [grad, job.constant(f"gradients/{name}/Slice_grad/paddings", np.array(pads), dtype="int32")],
                (x.form,),
            )[0]
        ]

    net.note(y, [x], backward)
    return y


def _concat(net: Net, name: str, a: Tensor, b: Tensor) -> Tensor:
    """Two matrices side by side."""
    job, cut = net.job, a.shape[1]
    y = job.op(
        "ConcatD",
        f"{name}/concat",
        lambda _, p, q: np.concatenate([p, q], 1),
        [a, b],
        (a.form,),
        {"concat_dim": 1, "N": 2},
    )[0]

    def part(label: str, grad: Tensor, begin: int, width: int) -> Tensor:
        attrs = {"offsets": (int, (0, begin)), "size": (int, (a.shape[0], width))}
        return job.op(
            "SliceD",
            f"gradients/{name}/concat_grad/{label}",
            lambda _, g: g[:, begin : begin + width],
            [grad],
            (a.form,),
            attrs,
        )[0]

    net.note(y, [a, b], lambda grad: [part("Slice", grad, 0, cut), part("Slice_1", grad, cut, b.shape[1])])
    return y


def recurrent(job: Job, feeding: Feeding) -> None:
    """A recurrent net in float32 whose embedding lies in parts on the ranks: AllGather, and ReduceScatter backward."""
    net = Net(job, feeding)
    times, batch, width, hidden = 3, 5, 12, 18
    rows = 4 * job.ranks
    ids, labels = net.batch(
        lambda rng: [rng.integers(0, rows, times * batch).astype("i4"), rng.integers(0, 6, batch).astype("i4")],
        (Form("int32"), Form("int32")),
    )
    shard = net.weights("embedding/shard", (rows // job.ranks, width), gain=3.0, own=int)
    table = job.all_gather("embedding/HcomAllGather", shard, world(job))
    net.note(
        table, [shard], lambda grad: [job.reduce_scatter("gradients/embedding/HcomReduceScatter", grad, world(job))]
    )
    flat = net.embedding("embedding", table, ids)
    state = None
    for time in range(times):
        x = _slice(net, f"rnn/time{time}", flat, (time * batch, 0), (batch, width))
        if state is None:
            zero = job.constant("rnn/zero_state", np.zeros((batch, hidden)))
            state = job.op("Mul", "rnn/initial/mul", lambda _, a, b: a * b, [zero, job.constant("rnn/one", 1.0)])[0]
        joined = _concat(net, f"rnn/time{time}", x, state)
        state = net.tanh(f"rnn/time{time}", net.dense(f"rnn/time{time}", joined, hidden, of="rnn/cell"))
    assert state is not None
    net.cross_entropy("loss", net.dense("head", state, 6, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        grad = net.gradient(name)
        grad = net.shared(name, grad, job.ranks) if name.endswith("/shard") else net.averaged(name, grad, world(job))
        net.sgd(variable, grad, rate)


def pairs(ranks: int, across: bool = False) -> list[list[int]]:
    """Tensor-parallel pairs of neighbours; `across`, the data-parallel groups of like halves."""
    return [list(range(half, ranks, 2)) for half in range(2)] if across else [[r, r + 1] for r in range(0, ranks, 2)]


def tensor_parallel(job: Job, feeding: Feeding, same_names: bool = False, half: bool = False) -> None:
    """A trunk, a layer cut by columns and one cut by rows over pairs, and a head; like halves are data-parallel."""
    net = Net(job, feeding, half=half)
    feeding.replica = lambda rank: rank // 2
    two, like = pairs(job.ranks), pairs(job.ranks, across=True)
    tensor_names = "tp_group" if same_names else [f"tp_group_{n}" for n in range(len(two))]
    data_names = "dp_group" if same_names else [f"dp_group_{n}" for n in range(2)]
    x, labels = net.batch(rows_with_labels(10, 16, 6), ROWS_WITH_LABELS)
    if half:
        x = job.cast(x, "float16")
    x = net.tanh("trunk", net.dense("trunk", x, 24))
    inner = x
    x = Tensor(**vars(inner))
    net.note(x, [inner], lambda grad: [job.all_reduce("gradients/column/HcomAllReduce", grad, two, tensor_names)])
    h = net.gelu("column", net.dense("column", x, 20, own=lambda rank: rank % 2))
    partial = net.dense("row", h, 24, own=lambda rank: rank % 2, bias=False)
    total = job.all_reduce("row/HcomAllReduce", partial, two, tensor_names)
    net.note(total, [partial], lambda grad: [grad])
    net.cross_entropy("loss", net.dense("head", net.add("skip", inner, total), 6, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        net.momentum(variable, net.averaged(name, net.gradient(name), like, data_names), rate)


def _sent_back(job: Job, pairs: Mapping[int, int], stage: int, grad: Tensor) -> Gradients:
    return [job.send(f"pipeline/backward{stage}", grad, pairs, tag=100 + stage)]


def pipeline(job: Job, feeding: Feeding, stages: int = 2) -> None:
    """Stages of dense layers on different ranks; HcomSend and HcomReceive between them; each stage data-parallel."""
    net = Net(job, feeding)
    width = job.ranks // stages
    of = [list(range(s * width, (s + 1) * width)) for s in range(stages)]
    feeding.replica = lambda rank: rank % width
    make = rows_with_labels(10, 18, 5)
    x, _ = net.batch(make, ROWS_WITH_LABELS, of[0])
    for stage in range(stages):
        if stage:
            there = {r: r + width for r in of[stage - 1]}
            back = {b: a for a, b in there.items()}
            sent = job.send(f"pipeline/forward{stage}", x, there, tag=stage)
            net.note(sent, [x], partial(_sent_back, job, back, stage))
            x = sent
        for layer in ("a", "b"):
            x = net.gelu(f"stage{stage}/{layer}", net.dense(f"stage{stage}/{layer}", x, 24, gain=1.4))
    _, labels = net.batch(make, ROWS_WITH_LABELS, of[-1], name="IteratorGetNextLabels")
    net.cross_entropy("loss", net.dense("head", x, 5, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        stage = next(n for n, ranks in enumerate(of) if variable.ranks == ranks)
        net.momentum(variable, net.averaged(name, net.gradient(name), [of[stage]], f"dp_stage_{stage}"), rate)


def experts(job: Job, feeding: Feeding) -> None:
    """A trunk for all, an expert on each rank, and a head: tokens go to the experts and back by HcomAllToAll."""
    net = Net(job, feeding)
    tokens = 2 * job.ranks
    x, labels = net.batch(rows_with_labels(tokens, 16, 5), ROWS_WITH_LABELS)
    x = net.tanh("trunk", net.dense("trunk", x, 20))

    def exchanged(name: str, t: Tensor) -> Tensor:
        y = job.all_to_all(f"{name}/HcomAllToAll", t, world(job))
        net.note(y, [t], lambda grad: [job.all_to_all(f"gradients/{name}/HcomAllToAll", grad, world(job))])
        return y

    h = exchanged("dispatch", x)
    h = net.gelu("expert/up", net.dense("expert/up", h, 26, own=int))
    h = exchanged("combine", net.dense("expert/down", h, 20, own=int))
    net.cross_entropy("loss", net.dense("head", net.add("skip", x, h), 5, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        grad = net.gradient(name)
        grad = net.shared(name, grad, job.ranks) if name.startswith("expert/") else net.averaged(name, grad, world(job))
        net.momentum(variable, grad, rate)


def sharded_update(job: Job, feeding: Feeding) -> None:
    """An MLP each rank of which updates its part of every variable (ZeRO): SliceD with the rank's own offsets."""
    net = Net(job, feeding)
    x, labels = net.batch(rows_with_labels(10, 16, 8), ROWS_WITH_LABELS)
    h = net.gelu("fc1", net.dense("fc1", x, 32, gain=1.4))
    net.cross_entropy("loss", net.dense("logits", h, 8, gain=2.0), labels)
    rate = net.rate()
    for name, variable in net.parameters.items():
        size = int(np.prod(variable.shape))
        part = size // job.ranks
        flat = job.reshape(f"zero/{name}/grad/Reshape", net.gradient(name), (size,))
        mine = net.shared(name, job.reduce_scatter(f"zero/{name}/HcomReduceScatter", flat, world(job)), job.ranks)
        whole = job.reshape(f"zero/{name}/Reshape", variable, (size,))
        old = job.op(
            "SliceD",
            f"zero/{name}/Slice",
            lambda r, _, a, part=part: a[r * part : (r + 1) * part],
            [whole],
            (PLAIN,),
            lambda r, part=part: {"offsets": (int, (r * part,)), "size": (int, (part,))},
            by_rank=True,
        )[0]
        change = job.op("Mul", f"zero/{name}/mul", lambda _, a, b: a * b, [mine, rate])[0]
        new = job.op("Sub", f"zero/{name}/sub", lambda _, a, b: a - b, [old, change])[0]
        gathered = job.all_gather(f"zero/{name}/HcomAllGather", new, world(job))
        shaped = job.reshape(f"zero/{name}/Reshape_1", gathered, variable.shape)
        done = job.op(
            "Assign", f"zero/{name}/Assign", lambda _, a, b: b, [variable, shaped], (PLAIN,), shares=variable
        )[0]
        job.assign(variable, done)


NETWORKS: dict[str, Callable[..., None]] = {
    "mlp_adam": mlp_adam,
    "transformer": transformer,
    "convnet": convnet,
    "recurrent": recurrent,
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
    "experts": experts,
    "sharded_update": sharded_update,
}
