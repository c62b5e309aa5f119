"""Runs command lines in processes that need not load what they import first: most of what a short command takes.

    python tool_server.py DESCRIPTOR MODULE...

It loads the modules and says so through the socket DESCRIPTOR. A request comes through it with the files that are
standard output and error. This process forks; the child becomes `python -m precision_tool`, or `python SCRIPT` where
the request names one, with the request's arguments, folder and environment, and ends as such. The answers are its
process id, then its exit code. See `command_line.tool`, `msprobe_python.run_torch` and `training_side.run_script`;
TensorFlow 1.15 has Python 3.7.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import runpy
import socket
import sys

#: Of a request: the arguments and the environment.
LONGEST = 1 << 17


def main() -> None:
    """Answers requests until the other end of the socket is closed."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as `lib/cli/app.py` has it
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as server:
        server.send(b"loaded")
        while answer(server):
            pass


def answer(server: socket.socket) -> bool:
    """Answers the next request; false when there will be none."""
    request, descriptors = receive(server)
    if not request:
        return False
    pid = os.fork()
    if pid == 0:
        server.close()
        script = become(request, *descriptors)
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module("precision_tool", run_name="__main__", alter_sys=True)
        sys.exit()
    for descriptor in descriptors:
        os.close(descriptor)
    server.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    server.send(str(code).encode())
    return True


def receive(server: socket.socket) -> tuple[bytes, list[int]]:
    """A request, and the files that came with it: `socket.recv_fds` is newer than Python 3.7."""
    descriptors = array.array("i")
    request, extra, _, _ = server.recvmsg(LONGEST, socket.CMSG_LEN(2 * descriptors.itemsize))
    for _, _, data in extra:
        descriptors.frombytes(data)
    return request, list(descriptors)


def become(request: bytes, out: int, err: int) -> str:
    """Gives this process what a new one would be started with, and returns the script that it is to run, if any."""
    asked = json.loads(request)
    for number, descriptor in ((1, out), (2, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    script: str = asked["script"]
    sys.argv[1:] = asked["arguments"]
    del sys.path[0]
    added = [path for path in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[:0] = [os.path.dirname(script) or os.getcwd(), *added]  # as -m has it
    return script


if __name__ == "__main__":
    main()
