"""The benchmark of `tf_dump`: a real training step of ResNet-50 under tfdbg, turned into `.npy` files three ways.

usage: PRECISION_TOOL_TF115=PYTHON python scripts/benchmarks/benchmark_tfdbg.py [--folder DIR] [--repeats N]

PYTHON is one with TensorFlow 1.15.5 and pexpect. Needs about 6 GB of disk. Prints ratios of times taken side by side.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import tempfile
from pathlib import Path

from measuring import run

REPO = Path(__file__).resolve().parents[2]
VARIABLE = "PRECISION_TOOL_TF115"

TRAIN = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.python import debug as tf_debug
np.random.seed(7)
tf.compat.v1.set_random_seed(7)
tf.keras.backend.set_learning_phase(1)
model = tf.keras.applications.ResNet50(weights=None)
label = tf.compat.v1.placeholder(tf.int64, [None], name="label")
loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(label, model.output))
train = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss)
session = tf.compat.v1.keras.backend.get_session()
session.run(tf.compat.v1.global_variables_initializer())
session = tf_debug.DumpingDebugWrapperSession(session, sys.argv[1])
feeds = {model.input: np.random.rand(4, 224, 224, 3), label: np.random.randint(0, 1000, 4)}
session.run([loss, train], feed_dict=feeds)
"""


def bench_tf_dump(folder: Path, repeats: int, python: str) -> None:
    """`tf_dump` against `cp -r` of the run folder and against TensorFlow's own analyzer; the sides take turns."""
    data = folder / "precision_data"
    source, dump = data / "tf" / "tf_debug", data / "tf" / "dump"
    tf_dump = [python, "-m", "precision_tool", "--data", str(data), "tf_dump"]
    _run([python, "-c", TRAIN, str(source)])
    files = [path for path in source.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    copying, ours, again = [], [], []
    peak = 0.0
    for _ in range(repeats):
        shutil.rmtree(folder / "copy", ignore_errors=True)
        copying.append(_run(["cp", "-r", str(source), str(folder / "copy")])[0])
        shutil.rmtree(dump, ignore_errors=True)
        seconds, memory = _run(tf_dump)
        ours.append(seconds)
        peak = max(peak, memory)
        again.append(_run(tf_dump)[0])
    shutil.rmtree(folder / "copy")
    analyzed = folder / "analyzed"
    slow = _run([*tf_dump, "--engine", "tfdbg", "-o", str(analyzed)])[0]
    names = sorted(os.listdir(dump))
    _, *differing = filecmp.cmpfiles(dump, analyzed, names, shallow=False)
    same = names == sorted(os.listdir(analyzed)) and not any(differing)
    shutil.rmtree(analyzed)
    best = min(ours)
    print(f"tf_dump: a training step of ResNet-50, {len(files)} files, {size / 1e9:.2f} GB → {len(names)} tensors")
    print(f"  tf_dump, as a process from start to exit    {best:8.2f} s   peak memory  {peak:6.0f} MB")
    print(f"  again, when nothing has changed             {min(again):8.2f} s")
    print(
        f"  cp -r                                       {min(copying):8.2f} s   tf_dump / cp {best / min(copying):6.2f}"
    )
    print(f"  tf_dump --engine tfdbg                      {slow:8.2f} s   that / tf_dump {slow / best:4.0f}")
    print(f"  both engines wrote the same files           {'yes' if same else 'NO'}")


def _run(command: list[str]) -> tuple[float, float]:
    return run(command, memory=True, variables={"PYTHONPATH": str(REPO), "TF_CPP_MIN_LOG_LEVEL": "2"})


def main() -> None:
    """Runs the benchmark by itself."""
    parser = argparse.ArgumentParser(description="Prints ratios of tf_dump measured side by side.")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the best counts (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the trees are made (default: a temporary folder)")
    args = parser.parse_args()
    python = os.environ.get(VARIABLE)
    if not python:
        parser.error(f"{VARIABLE} must name a Python with TensorFlow 1.15.5")
    folder = Path(tempfile.mkdtemp(prefix="precision_tool_bench_", dir=args.folder))
    try:
        bench_tf_dump(folder, args.repeats, python)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
