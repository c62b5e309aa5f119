"""A small network for each cause that a verdict names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from builders import Array
from faults import stored_transposed, zero_tail
from tiny_network import Network, cast, fused, layers, numbers, source, unary


def overwritten(array: Array) -> Array:
    flat = array.copy().reshape(-1)
    flat[16:48] = numbers(32, seed=9).astype(array.dtype)
    return flat.reshape(array.shape)


def npu_values(name: str) -> Array:
    """What a source of `layers` has on the NPU."""
    npu = next(part.npu for part in layers().parts if part.name == name)
    assert npu is not None
    return npu


def through_integers() -> Network:
    return Network(
        parts=(
            source("IteratorGetNext", numbers(6, 5, seed=1, scale=3)),
            cast("trans_Cast_0", "IteratorGetNext", "int32"),
            cast("trans_Cast_1", "trans_Cast_0", "float32"),
            unary("square", "Square", "trans_Cast_1", "float32"),
        )
    )


def out_of_range() -> Network:
    """A product that goes over float16's range, with one of its elements just at the edge."""
    kernel = npu_values("two/kernel")
    return layers().with_part("two/kernel", npu=kernel * np.float32(60000 / np.abs(kernel).max()))


DROPOUT = "drop/random_uniform/RandomUniform"
#: One network for each cause.
CAUSES: dict[str, Network] = {
    "fusion": fused().with_part("one/MatMul", wrong=zero_tail),
    "layout": layers().with_part("drop/mul", wrong=stored_transposed),
    "cast": through_integers(),
    "overflow": replace(out_of_range(), saturates=True),
    "stomp": layers().with_part("two/MatMul", read={0: overwritten}),
    "random": layers().with_part(DROPOUT, golden=numbers(8, 16, seed=78)),
    "input": layers().with_part("IteratorGetNext", golden=np.ascontiguousarray(npu_values("IteratorGetNext")[::-1])),
    "weights": layers().with_part("two/kernel", golden=npu_values("two/kernel") * np.float32(1.5)),
}
