"""Requests to the MCP server: whatever a tool is asked, it reads nothing outside of its folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from faults import negated
from jsonschema import Draft202012Validator
from tiny_network import layers

from fuzzing import WrongAnswerError
from fuzzing.shown import HOSTILE
from precision_tool.lib.cli.mcp_server import _problem
from precision_tool.lib.cli.mcp_tools import TOOLS, Desk, Permission, run_tool
from precision_tool.lib.cli.mcp_worker import _PACKAGE
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.io.local import reading_only
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError, UsageError

#: Of this tensor, which lies outside of the data folder, nothing may be answered.
_SECRET = 8675309.0
#: Answers are cut until they are as long as assistants read; what cannot be cut further is not much longer.
_LONGEST = 400_000
#: Of what was asked.
_MOST_QUOTED = 6500
_OP = "one/MatMul"
_NAMES = (
    _OP, f"{_OP}:output:0", "[2]", "[99]", "matmul", "*", "[", "a[b", "?", "npu", "npu/debug_0", "debug_0", "tf/dump",
    ".", "..",
    "../outside", "../outside/secret.npy", "OUTSIDE/secret.npy", "link.npy", "linked/secret.npy", "npu/../../outside",
    "~/x", "~root", "/etc/passwd", "/proc/self/environ", "/dev/zero", "/dev/stdin", "file:///etc/passwd",
    "s3://bucket/x",
    "http://127.0.0.1:1/x", "ssh://host/x", "-h", "--help", "--json", "-", "--", "--data=/etc", "-o/tmp/x", "--save",
    "x" * 70000, "a/" * 3000, "secret.npy", "loss", "1", "0", "[2]:input:0", ":output:0", "a:b:c", "%s{0}",
)  # fmt: skip


@cache
def _data(folder: str) -> str:
    """A data folder that was made here, with links that lead out of it, and what lies there."""
    root, outside = Path(folder, "data"), Path(folder, "outside")
    outside.mkdir()
    np.save(outside / "secret.npy", np.full(3, _SECRET, np.float32))
    layers().with_part(_OP, wrong=negated).write(root)
    (root / "link.npy").symlink_to(outside / "secret.npy")
    (root / "linked").symlink_to(outside)
    Path(folder, "scratch").mkdir()
    return str(root)


def requests(folder: Path) -> list[bytes]:
    """A sound request to each tool."""
    del folder
    arguments: dict[str, dict[str, Any]] = {
        "look_at_op": {"op": _OP}, "write_repro": {"op": _OP}, "show_tensor": {"tensor": _OP, "output": 0},
        "compare_tensors": {"npu": _OP}, "check": {"what": "graphs"}, "list_rows": {"op": "matmul", "limit": 2},
        "find_ops": {"name": "*MatMul", "wrong": True}, "diagnose": {"threshold": 0.98},
    }  # fmt: skip
    names = [tool.name for tool in TOOLS] + ["nothing"]
    return [json.dumps({"name": name, "arguments": arguments.get(name, {})}).encode() for name in names]


def request_input(rng: Random) -> bytes:
    """Arguments of the right names, which are anything."""
    tool = rng.choice(TOOLS)
    arguments = {
        name: _argument(rng, takes)
        for name, takes in tool.takes["properties"].items()
        if name in tool.takes.get("required", ()) or rng.random() < 0.3
    }
    if rng.random() < 0.05:
        arguments["more"] = 1
    return json.dumps({"name": tool.name, "arguments": arguments}, default=repr).encode()


def _argument(rng: Random, takes: dict[str, Any]) -> Any:
    if rng.random() < 0.1:
        value = rng.choice(HOSTILE)
        return value if not isinstance(value, int) or abs(value) < 2**70 else 2**70
    if "enum" in takes:
        return rng.choice(takes["enum"])
    if takes["type"] == "boolean":
        return rng.random() < 0.2
    if takes["type"] == "integer":
        return rng.choice((0, 0, 1, 2, 3, 99, 2**31, 2**63, 2**64, 10**30))
    if takes["type"] == "number":
        return rng.choice((0.98, 0.98, 0, 1, -1, 1e-300))
    return rng.choice((_OP, *_NAMES, *(text for text in HOSTILE if isinstance(text, str))))


def read_request(path: str) -> Iterator[Message | str]:
    """As the server and its worker do: an answer of the tool's schema, or an error; and nothing from outside."""
    folder = os.path.dirname(path)
    data = _data(folder)
    try:
        request = json.loads(Path(path).read_bytes().decode().replace("OUTSIDE", f"{folder}/outside"))
        name, arguments = request["name"], dict(request["arguments"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # what is no request the protocol refuses
    tool = next((tool for tool in TOOLS if tool.name == name), None)
    scratch = f"{folder}/scratch"
    desk = _desk(data, scratch)
    try:
        problem = _problem(tool, arguments) if tool is not None else None
        if problem is not None:
            raise problem
        with reading_only([data, scratch, _PACKAGE]):
            answer = run_tool(desk, name, arguments)
    except PrecisionToolError as error:  # it may quote all that was asked, line by line
        if len(error.message) > _MOST_QUOTED or not error.message.replace("\n", "").isprintable():
            raise
        raise UsageError("refused") from error
    assert tool is not None
    Draft202012Validator(tool.gives).validate(answer)
    text = json.dumps(answer, ensure_ascii=False)
    if str(_SECRET) in text or "root:x:" in text:
        raise WrongAnswerError(f"read outside of the data folder: {text}"[:500])
    if len(text) > _LONGEST:
        raise WrongAnswerError(f"an answer of {len(text)} characters")
    yield ""


@cache
def _desk(data: str, scratch: str) -> Desk:
    permission = Permission(folders=(data,), scratch=scratch)
    return Desk(settings=load_settings({"data": data, "workers": "1"}), permission=permission, command="precision-tool")
