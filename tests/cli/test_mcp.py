"""`mcp`: a client works through cases by the interface alone, and the server does no more than it is allowed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from command_line import HANG, TOOL, environment, fingerprint, tool
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from one_cause_each import CAUSES
from tiny_network import Network, layers, numbers, source, unary

from precision_tool.lib.cli.mcp_tools import shortened
from precision_tool.lib.compare import scheduler
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import store_of
from precision_tool.lib.io.local import reading_only
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.messages.errors import FormatError

#: What is wrong in the case of each cause, which the client is not told.
TRUTH = {
    "fusion": ("one/MatMul", "fusion"),
    "input": ("IteratorGetNext", "input"),
    "layout": ("drop/mul", "layout"),
    "stomp": ("two/MatMul", "stomp"),
    "weights": ("two/kernel", "weights"),
}


class Assistant:
    """An MCP client; every answer is checked against the schema of its tool by the client itself."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def ask(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(name, arguments)
        assert not result.is_error, result.content
        answer: dict[str, Any] = result.structured_content
        (content,) = result.content
        assert content.type == "text"
        assert json.loads(content.text) == answer  # for clients that show the texts only
        assert len(content.text) < 50_000
        return answer

    async def refused(self, name: str, /, **arguments: Any) -> str:
        result = await self.client.call_tool(name, arguments)
        assert result.is_error, result.structured_content
        (content,) = result.content
        assert content.type == "text"
        return content.text

    async def solve(self, data: str) -> tuple[str | None, str | None]:
        """Whom an assistant names, by the verdict and what it sees of the op itself."""
        answer = await self.ask("diagnose", data=data)
        verdict = answer["results"][0]["verdict"]
        culprit = verdict["culprit"]
        seen = await self.ask("look_at_op", data=data, op=culprit)
        (op,) = seen["ops"]
        is_wrong_itself = op["verdict"] is not None and op["verdict"]["state"] == "wrong"
        rows = await self.ask("list_rows", data=data, limit=5)
        errors = [row["own_error"] for row in rows["items"]]
        assert errors == sorted(errors, reverse=True)
        if is_wrong_itself:
            assert culprit in [row["op"] for row in rows["items"]]
        steps = (await self.ask("next_steps", data=data))["steps"]
        assert [step["line"] for step in steps] == [step["line"] for step in verdict["next"]]
        for step in steps:
            if step["tool"] is not None:
                await self.ask(step["tool"], **step["arguments"])
        return culprit, verdict["cause"]


def with_server(cwd: Path, arguments: list[str], work: Callable[[Assistant], Awaitable[None]]) -> None:
    async def run() -> None:
        command = ["-m", "precision_tool", *arguments]
        parameters = StdioServerParameters(command=sys.executable, args=command, cwd=cwd, env=environment(cwd))
        with (cwd / "server.log").open("w+") as log:
            async with Client(stdio_client(parameters, errlog=log)) as client:
                await work(Assistant(client))
        text = (cwd / "server.log").read_text()
        assert "Traceback" not in text, text
        assert not [*(cwd / ".tmp").iterdir()]  # its own folder is gone

    anyio.run(run)


def test_an_assistant_solves_five_cases_and_reads_nothing_else(tmp_path: Path) -> None:
    for cause in TRUTH:
        CAUSES[cause].write(tmp_path / cause / "precision_data")
    long = [source("IteratorGetNext", numbers(64, 64))]
    long += [unary(f"relu_{number}", "Relu", long[-1].name if number else "IteratorGetNext") for number in range(300)]
    Network(parts=tuple(long)).write(tmp_path / "long" / "precision_data")
    outside = tmp_path / "outside"
    CAUSES["fusion"].write(outside / "precision_data")
    np.save(outside / "secret.npy", np.zeros(3))
    (tmp_path / "fusion" / "precision_data" / "link.npy").symlink_to(outside / "secret.npy")
    (tmp_path / "linked" / "precision_data").mkdir(parents=True)
    (tmp_path / "linked" / "precision_data" / "npu").symlink_to(outside / "precision_data" / "npu")
    before = fingerprint(tmp_path)

    async def work(assistant: Assistant) -> None:
        tools = (await assistant.client.list_tools()).tools
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        folders = [folder["data"] for folder in (await assistant.ask("list_data"))["folders"]]
        assert len(folders) == len(TRUTH) + 2
        assert "which data folder" in await assistant.refused("diagnose")
        for folder in folders:
            cause = Path(folder).parent.name
            if cause in TRUTH:
                assert await assistant.solve(folder) == TRUTH[cause], cause
        await pages(assistant, str(tmp_path / "fusion" / "precision_data"))
        await escapes(assistant, tmp_path)
        await errors(assistant, str(tmp_path / "fusion" / "precision_data"))
        await cancelled(assistant, str(tmp_path / "long" / "precision_data"))

    shown = [option for cause in (*TRUTH, "long", "linked") for option in ("--data", f"{cause}/precision_data")]
    with_server(tmp_path, [*shown, "mcp"], work)
    after = fingerprint(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} - {".", "server.log", ".tmp"} == set()


async def pages(assistant: Assistant, data: str) -> None:
    """Pages of rows and ops together are all of them, each once; the numbers are those of --json."""
    whole = await assistant.ask("list_rows", data=data, order="execution", limit=100)
    assert (whole["next_offset"], whole["total"]) == (None, len(whole["items"]))
    some: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next_offset": 0}
    while page["next_offset"] is not None:
        page = await assistant.ask("list_rows", data=data, order="execution", limit=3, offset=page["next_offset"])
        some += page["items"]
    assert some == whole["items"]
    lowest = await assistant.ask("list_rows", data=data, order="cosine", limit=1)
    assert lowest["items"][0]["metrics"]["cosine"] == min(row["metrics"]["cosine"] for row in some)
    (op,) = (await assistant.ask("find_ops", data=data, wrong=True))["items"]
    assert (op["name"], op["state"]) == ("one/MatMul", "wrong")
    tensor = await assistant.ask("show_tensor", data=data, tensor="one/MatMul", output=0, values=4)
    assert len(tensor["tensors"][0]["first"]) == 4
    (file,) = Path(data).glob("npu/debug_0/dump/**/*.one_MatMul.*")
    name = f"{file.relative_to(Path(data) / 'npu')}:output:0"
    by_file = await assistant.ask("show_tensor", data=data, tensor=name, values=4)
    assert by_file["tensors"][0]["first"] == tensor["tensors"][0]["first"]
    compared = await assistant.ask("compare_tensors", data=data, npu="one/MatMul", values=2)
    (row,) = [row for row in some if (row["op"], row["slot"]) == ("one/MatMul", "output:0")]
    assert compared["metrics"]["cosine"] == pytest.approx(row["metrics"]["cosine"])


async def escapes(assistant: Assistant, folder: Path) -> None:
    """What lies elsewhere is refused alike, whether it is there or not."""
    data = str(folder / "fusion" / "precision_data")
    secret, missing = str(folder / "outside" / "secret.npy"), str(folder / "outside" / "no.npy")
    for name in (
        secret,
        missing,
        "../../outside/secret.npy",
        "link.npy",
        "link.npy:output:0",
        "npu/../../../outside/secret.npy:output:0",
    ):
        text = await assistant.refused("show_tensor", data=data, tensor=name)
        assert "outside of the folders that may be read" in text, text
        assert "mcp --read DIR" in text
    assert "outside of the folders" in await assistant.refused(
        "compare_tensors", data=data, npu="one/MatMul", benchmark=secret
    )
    with socket.create_server(("127.0.0.1", 0)) as host:
        host.settimeout(0)
        url = f"http://127.0.0.1:{host.getsockname()[1]}/secret"
        for asked, argument in (("show_tensor", "tensor"), ("look_at_op", "op")):
            assert "outside of the folders" in await assistant.refused(asked, data=data, **{argument: url})
        with pytest.raises(BlockingIOError):  # nobody has connected
            host.accept()
    for name in ("graph", "npu", "benchmark"):
        for place in (str(folder / "outside" / "precision_data"), "http://127.0.0.1:9/x", "file:///etc"):
            assert "outside of the folders" in await assistant.refused("diagnose", data=data, **{name: place})
    assert "not a data folder of this server" in await assistant.refused(
        "diagnose", data=str(folder / "outside" / "precision_data")
    )
    linked = str(folder / "linked" / "precision_data")  # nor by a link that is in the data
    assert "outside of the folders" in await assistant.refused("diagnose", data=linked)


async def errors(assistant: Assistant, data: str) -> None:
    text = await assistant.refused("look_at_op", data=data, op="one/MatMull")
    assert text.startswith("no op 'one/MatMull'")
    assert "hint: " in text
    assert "one/MatMul" in text.partition("hint: ")[2]
    for name in ("--attr=x", "-s3", "--help"):  # never an option
        assert name in await assistant.refused("look_at_op", data=data, op=name)
    assert "op: 7 is not of type 'string'" in await assistant.refused("look_at_op", data=data, op=7)
    assert "'custom' was unexpected" in await assistant.refused("diagnose", data=data, custom="x.py")
    for name, arguments in (("write_report", {}), ("write_repro", {"op": "one/MatMul"})):
        assert "mcp --allow-write" in await assistant.refused(name, data=data, **arguments)
    assert "the tools are list_data" in await assistant.refused("run", command="ls")


async def cancelled(assistant: Assistant, data: str) -> None:
    """While it works the server answers; a diagnosis that is cancelled ends, and the next call is answered."""
    messages = []
    with anyio.CancelScope() as scope:

        async def stop(progress: float, total: float | None, message: str | None) -> None:
            messages.append(message)
            assert (await assistant.client.list_tools()).tools
            scope.cancel()

        await assistant.client.call_tool("diagnose", {"data": data}, progress_callback=stop)
    assert scope.cancelled_caught
    assert messages[0] is not None
    assert messages[0].startswith("comparing: ")
    found = await assistant.ask("find_ops", data=data, name="relu_299")
    assert found["items"][0]["state"] is None  # there is no verdict


def test_with_permission_it_writes_to_the_work_folder(tmp_path: Path) -> None:
    CAUSES["fusion"].write(tmp_path / "precision_data")
    (tmp_path / "precision_data" / "tf").rename(tmp_path / "benchmark")
    (tmp_path / "precision_data" / "tf").symlink_to(tmp_path / "benchmark")
    dumps = fingerprint(tmp_path / "precision_data")

    async def work(assistant: Assistant) -> None:
        assert (await assistant.ask("list_data"))["may_write"]
        whole = await assistant.ask("diagnose_all")
        assert (whole["culprit"]["op"], whole["culprit"]["cause"]) == ("one/MatMul", "fusion")
        steps = (await assistant.ask("next_steps"))["steps"]
        (step,) = [step for step in steps if step["tool"] == "write_repro"]
        assert step["command"].endswith(f"--work {tmp_path}/work repro one/MatMul")
        made = await assistant.ask("write_repro", **step["arguments"])
        assert str(tmp_path / "work" / "repro") in made["lines"][0]
        report = await assistant.ask("write_report")
        assert ".html" in report["lines"][-1]

    with_server(
        tmp_path, ["--data", "precision_data", "--work", "work", "mcp", "--allow-write", "--read", "benchmark"], work
    )
    assert [*(tmp_path / "work" / "repro").glob("*/check.py")]
    assert [*(tmp_path / "work" / "vector_compare").glob("*/*.html")]
    assert fingerprint(tmp_path / "precision_data") == dumps


def test_nothing_but_the_protocol_on_standard_output_and_an_end_at_once(tmp_path: Path) -> None:
    layers().write(tmp_path / "precision_data")
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    with subprocess.Popen(
        [*TOOL, "--data", "precision_data", "mcp"], cwd=tmp_path, env=environment(tmp_path),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "precision-tool"
        process.terminate()
        out, err = process.communicate(timeout=HANG)
    assert (process.returncode, out, err) == (143, "", "")
    assert not [*(tmp_path / ".tmp").iterdir()]


def test_without_the_package(tmp_path: Path) -> None:
    layers().write(tmp_path / "precision_data")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "mcp.py").write_text("raise ImportError('no mcp here')\n")
    run = tool("mcp", cwd=tmp_path, code=2, env={"PYTHONPATH": str(blocked)})
    assert run.out == ""
    assert "no mcp here" in run.err
    assert "pip install 'precision-tool[mcp]'" in run.err


def test_wrong_use(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(layers().write(tmp_path / name), tmp_path / name / "precision_data")
    two = ("--data", "a/precision_data", "--data", "b/precision_data")
    assert (
        "--work takes the results of one data folder"
        in tool(*two, "--work", "w", "mcp", "--allow-write", cwd=tmp_path, code=2).text
    )
    (tmp_path / "b" / "precision_data" / "temp").write_text("no folder")
    assert "b/precision_data" in tool("--data", "b/precision_data", "mcp", "--allow-write", cwd=tmp_path, code=2).text
    assert "no such folder" in tool("--data", "a", "mcp", "--read", "none", cwd=tmp_path, code=2).text
    assert "no such" in tool("--data", "a/precision_data", "--data", "none", "mcp", cwd=tmp_path, code=2).text


def test_long_answers_are_cut_and_say_so() -> None:
    document = {"few": [1, 2], "rows": [{"name": "x" * 100, "next": list(range(500))} for _ in range(500)]}
    short = shortened(document)
    assert len(json.dumps(short)) < 50_000
    assert short["few"] == [1, 2]
    assert short["left_out"]["rows"] == 500 - len(short["rows"])
    assert short["left_out"]["rows[0].next"] == 500 - len(short["rows"][0]["next"])
    assert shortened({"few": [1, 2]}) == {"few": [1, 2]}


def test_its_worker_processes_may_read_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are started anew, as beside other threads."""
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "outside.npy", np.zeros(3))
    monkeypatch.setattr(scheduler, "can_fork", lambda: False)
    with reading_only([str(tmp_path / "data")]), scheduler.process_pool(1) as pool:
        with pytest.raises(FormatError, match="outside"):
            pool.submit(read_npy, str(tmp_path / "outside.npy")).result()
        with pytest.raises(FormatError, match="outside"):
            store_of(urls.path_of("http://127.0.0.1:9/x"))
