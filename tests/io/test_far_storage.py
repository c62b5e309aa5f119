"""Servers that misbehave: no ranges, no lengths, answers cut off. What is read is right, or an error says why."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from range_server import Served, serving

from precision_tool.cli import main
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.io import files, remote, stores, urls
from precision_tool.lib.io.files import store_of
from precision_tool.lib.io.urls import path_of
from precision_tool.lib.messages.errors import FormatError

pytest.importorskip("fsspec")  # in the extra `remote`, which the extra `test` has

BYTES = os.urandom(300_000)


@pytest.fixture(autouse=True)
def _no_places_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_secrets", {})
    monkeypatch.setattr(files, "_remote", {})
    monkeypatch.setattr(stores, "_unread", {})
    monkeypatch.setattr(remote, "_WAITS", (0.0, 0.0))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "a.bin").write_bytes(BYTES)
    (tmp_path / "small.bin").write_bytes(BYTES[:1000])
    (tmp_path / "empty.bin").write_bytes(b"")
    with serving(tmp_path) as server:
        yield server


def read(served: Served, name: str, *ranges: tuple[int, int]) -> list[bytes]:
    path = path_of(f"{served.url}/{name}")
    with store_of(path).open(path) as file:
        return [file.read_at(*each) for each in ranges] or [file.read_at(0, file.size)]


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("sends_length", [True, False])
@pytest.mark.parametrize("tells_size", [True, False])
def test_a_server_without_ranges_or_lengths_is_read(
    served: Served, has_ranges: bool, sends_length: bool, tells_size: bool
) -> None:
    served.has_ranges, served.sends_length, served.tells_size = has_ranges, sends_length, tells_size
    assert read(served, "small.bin") == [BYTES[:1000]]
    assert read(served, "empty.bin") == [b""]
    ranges = [(0, 300_000), (250_000, 7), (0, 5), (70_000, 200_000)]
    assert read(served, "a.bin", *ranges) == [BYTES[start : start + count] for start, count in ranges]
    assert len(served.asked) <= 2 + 4
    assert stores.take_unread() == {}


def test_a_file_of_a_server_without_ranges_is_fetched_up_to_a_bound(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_MAX_WHOLE", 299_999)
    for served.sends_length in (True, False):
        served.has_ranges = False
        with pytest.raises(FormatError) as caught:
            read(served, "a.bin")
        assert caught.value.kind == "io.remote.no_ranges"
        assert caught.value.fields["is_too_large"]
        assert read(served, "small.bin") == [BYTES[:1000]]


@pytest.mark.parametrize("statuses", [[500, 503], [0], [429, 0]])
def test_what_passes_is_tried_again(served: Served, statuses: list[int]) -> None:
    served.fails = {"/a.bin": [*statuses], "/small.bin": [*statuses]}
    assert read(served, "a.bin") == [BYTES]
    assert read(served, "small.bin") == [BYTES[:1000]]
    served.fails = {"/": [*filter(None, statuses)]}
    root = path_of(served.url)
    assert len(store_of(root).entries(root)) == 3
    assert stores.take_unread() == {}


@pytest.mark.parametrize("statuses", [[500] * 9, [0] * 9, [403]])
def test_what_does_not_pass_is_an_error(served: Served, statuses: list[int]) -> None:
    served.fails = {"/a.bin": [*statuses]}
    with pytest.raises(FormatError):
        read(served, "a.bin")
    assert [*stores.take_unread()] == [path_of(f"{served.url}/a.bin")]


def test_connections_are_let_go_for_a_fork_and_what_is_known_is_kept(served: Served) -> None:
    root = path_of(served.url)
    before = threading.active_count()
    assert len(store_of(root).entries(root)) == 3
    assert read(served, "small.bin") == [BYTES[:1000]]
    assert threading.active_count() > before
    listed, asked = len(served.listings), len(served.asked)
    waiting = threading.Thread(target=served.answers.wait)  # one of another's: whose connection it may be is not known
    served.answers.clear()
    waiting.start()
    files.let_go()
    assert store_of(root)._connection is not None  # type: ignore[attr-defined]  # a RemoteStore
    served.answers.set()
    waiting.join()
    store_of(root).let_go()
    assert len(store_of(root).entries(root)) == 3
    assert read(served, "small.bin") == [BYTES[:1000]]
    assert (len(served.listings), len(served.asked)) == (listed, asked)
    assert read(served, "a.bin", (100_000, 7)) == [BYTES[100_000:100_007]]


def test_a_file_that_grows_while_it_is_read_is_an_error(served: Served) -> None:
    path = path_of(f"{served.url}/a.bin")
    with store_of(path).open(path) as file:
        (served.root / "a.bin").write_bytes(BYTES * 2)
        with pytest.raises(FormatError) as caught:
            file.read_at(100_000, 10)
    assert caught.value.kind == "io.remote.other_length"


def test_a_study_says_what_its_storage_did_not_give_and_goes_on_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate_ranks(tmp_path / "ranks", ranks=1, steps=1, fault="none")
    monkeypatch.chdir(tmp_path)
    words = ["--work", "work", "ac", "--all", "--workers", "1"]
    with serving(tmp_path / "ranks" / truth.data[0]) as served:
        served.refuses = lambda name: "/npu/debug_0/dump/" in name and "conv1" in name
        assert main(["--data", served.url, *words, "--json"]) == 2
        told = json.loads(capfd.readouterr().out)
        assert told["culprit"] is None
        assert told["unread"]["files"] == len(
            {name for name in served.asked if name[:4] == "GET " and served.refuses(name)}
        )
        assert "503" in told["unread"]["reason"]
        compared = told["leaves"][0]["compared"]
        assert main(["--data", served.url, *words]) == 2
        said = capfd.readouterr().out
        assert "some data could not be read" in said
        assert "503" in said
        served.refuses = lambda name: False
        assert main(["--data", served.url, *words, "--json"]) == 0
        told = json.loads(capfd.readouterr().out)
        assert told["unread"] is None
        assert told["leaves"][0]["compared"] > compared


def test_a_command_says_what_its_storage_did_not_give(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate_ranks(tmp_path / "ranks", ranks=1, steps=1, fault="none")
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "ranks" / truth.data[0]) as served:
        served.refuses = lambda name: "/npu/debug_0/dump/" in name and "Conv2D.conv1" in name
        for words in (["vc"], ["ac", "-c", "--json"], ["ni", "conv1/Conv2D"]):
            served.asked.clear()
            assert main(["--data", served.url, "--work", "work", *words]) == 2
            said = capfd.readouterr()
            refused = {name for name in served.asked if name[:4] == "GET " and served.refuses(name)}
            if "--json" in words:
                unread = json.loads(said.out)["unread"]
                assert unread["files"] == len(refused) == 1
                assert "503" in unread["reason"]
            else:
                assert "1 file could not be read from storage" in said.out
        served.refuses = lambda name: False
        assert main(["--data", served.url, "--work", "work", *words]) == 0
        assert "read from storage" not in capfd.readouterr().out


def test_an_answer_that_does_not_end_is_not_read_on() -> None:
    class Endless:
        taken = 0

        async def iter_any(self) -> AsyncIterator[bytes]:
            while True:
                self.taken += 1
                yield bytes(1000)

    answer = SimpleNamespace(content=Endless())
    with ThreadPoolExecutor(1) as thread:  # a browser of other tests may have left an event loop
        assert len(thread.submit(lambda: asyncio.run(remote._up_to(2500, answer))).result()) == 3000
    assert answer.content.taken == 3
