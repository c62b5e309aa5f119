"""Runs command lines in processes that need not load the tool first: most of what a short command takes.

    python tool_server.py DESCRIPTOR

A request comes through the socket DESCRIPTOR with the files that are standard output and error. This process, which has
loaded what `ac` loads, forks; the child becomes `python -m precision_tool`
with the request's arguments, folder and environment, and ends as such. The answers are its process id, then its exit
code. See `command_line.tool`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys

#: Of a request: the arguments and the environment.
LONGEST = 1 << 17
#: What all commands load, and `ac`, which most tests run; what others need they load themselves, as ever.
LOADED = (
    "precision_tool.lib.session",
    "precision_tool.lib.present.console",
    "precision_tool.lib.cli.cmd_ac",
    "precision_tool.lib.diagnose.pipeline",
    "precision_tool.lib.present.verdict",
)


def main() -> None:
    """Answers requests until the other end of the socket is closed."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as `lib/cli/app.py` has it
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as server:
        while answer(server):
            pass


def answer(server: socket.socket) -> bool:
    """Answers the next request; false when there will be none."""
    request, descriptors, _, _ = socket.recv_fds(server, LONGEST, 2)
    if not request:
        return False
    pid = os.fork()
    if pid == 0:
        server.close()
        become(request, *descriptors)
        runpy.run_module("precision_tool", run_name="__main__", alter_sys=True)  # ends with SystemExit
    for descriptor in descriptors:
        os.close(descriptor)
    server.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    server.send(str(os.waitstatus_to_exitcode(status)).encode())
    return True


def become(request: bytes, out: int, err: int) -> None:
    """Gives this process what a new one would be started with."""
    asked = json.loads(request)
    for number, descriptor in ((1, out), (2, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[1:] = asked["arguments"]
    sys.path[0] = os.getcwd()  # as -m has it


if __name__ == "__main__":
    main()
