"""The tree that `scripts/bench resnet` measures on has the shape of a real training step."""

from __future__ import annotations

import numpy as np
import pytest
import resnet_twin
from resnet_twin import Value

from precision_tool.lib.demo.dump_writer import pack


def test_it_is_as_large_as_a_training_step() -> None:
    step = resnet_twin._Step(None)
    resnet_twin._Network(step, 5).run()
    # As the dump of a real one counts: files, tensors and bytes of the device, files and bytes of the benchmark.
    found = (step.dump_files, step.tensors, step.npu_bytes, len(step.known), step.golden_bytes)
    np.testing.assert_allclose(found, (900, 3381, 4.6e9, 1690, 1.75e9), rtol=0.25)
    assert len({op.name for op in step.ops}) == len(step.ops)


@pytest.mark.parametrize(
    ("layout", "origin", "shape"),
    [
        ("NC1HWC0", "NHWC", (2, 5, 4, 3)),
        ("NC1HWC0", "NHWC", (1, 2, 2, 64)),
        ("FRACTAL_Z", "HWCN", (3, 2, 40, 17)),
        ("ND", "ND", (7, 3)),
    ],
)
def test_shapes_are_as_packed(layout: str, origin: str, shape: tuple[int, ...]) -> None:
    value = Value(
        op="op", index=0, shape=shape, dtype="float16", layout=layout, origin_layout=origin, golden="", golden_index=0
    )
    assert resnet_twin._stored_shape(value) == pack(np.zeros(shape, np.float16), layout, origin).shape
