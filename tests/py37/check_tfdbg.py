"""`tf_dump` where training runs: Python 3.7, and no numpy for tensors as TensorFlow writes them."""

import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = "import sys; from precision_tool.cli import main; sys.modules['numpy'] = None; sys.exit(main(sys.argv[1:]))"


class TfDump(unittest.TestCase):
    def test_a_run_becomes_npy_files(self):
        # type: () -> None
        sys.path.insert(0, TESTS)
        from tfdbg_files import content, tensor_proto, write_tensor

        values = struct.pack("<6f", *range(6))
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder, "tf", "tf_debug", "run_1795190660015229_0")
            write_tensor(run, "scope/op", 1, 1795190660042954, tensor_proto("float32", (2, 3), content(values)))
            write_tensor(run, "cut", 0, 1795190660042955, b"")
            for expected in ("1 tensor (152 B) of 1 run written", "up to date, 1 tensor (152 B) of 1 run"):
                done = subprocess.run(
                    [sys.executable, "-B", "-W", "error", "-c", CODE, "--data", folder, "tf_dump"],
                    env={"PYTHONPATH": os.path.dirname(TESTS), "PATH": os.environ.get("PATH", "")},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert (done.returncode, done.stderr) == (0, ""), done.stderr
                assert expected in done.stdout
                assert "not read: cut:0: " in done.stdout
            (path,) = Path(folder, "tf", "dump").iterdir()
            assert path.name == "scope_op.1.1795190660042954.npy"
            data = path.read_bytes()
            assert data.startswith(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }")
            assert (len(data), data[-24:]) == (128 + 24, values)


if __name__ == "__main__":
    unittest.main()
