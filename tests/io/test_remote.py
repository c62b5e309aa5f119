"""Data that is on no disk: in the memory of fsspec and behind an HTTP server, read as from a disk."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, ClassVar

import numpy as np
import pytest
from range_server import Served, serving

from precision_tool.cli import main
from precision_tool.lib.api import compare
from precision_tool.lib.data.dump_tree import list_folders
from precision_tool.lib.data.workspace import without_folder
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.io import files, local, remote, urls
from precision_tool.lib.io.files import store_of
from precision_tool.lib.io.remote import RemoteStore, error_of, filesystem_of
from precision_tool.lib.io.stores import Entry, Kind, note_unread
from precision_tool.lib.io.tfdbg_files import files_of_run, find_runs
from precision_tool.lib.io.urls import path_of
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, UsageError

fsspec = pytest.importorskip("fsspec")  # in the extra `remote`, which the extra `test` has
AnyFileSystem: Any = fsspec.AbstractFileSystem


@pytest.fixture(autouse=True)
def forked_workers() -> None:
    """Workers are started as users have them: fsspec's threads are what these tests are of."""


@pytest.fixture(autouse=True)
def _no_places_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_secrets", {})
    monkeypatch.setattr(urls, "_given", set())
    monkeypatch.setattr(urls, "_schemes", set())
    monkeypatch.setattr(files, "_remote", {})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("remote") / "data"
    generate_demo(root, fault="fused")
    return root


@pytest.fixture
def served(data: Path) -> Iterator[Served]:
    with serving(data) as server:
        yield server


def put_in_memory(data: Path, place: str) -> str:
    memory = fsspec.filesystem("memory")
    for path in data.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/{place}/{path.relative_to(data)}", path.read_bytes())
    return f"memory://{place}"


def told(words: list[str], place: str, capfd: pytest.CaptureFixture[str], code: int = 0) -> Any:
    assert main(words) == code
    out = capfd.readouterr().out
    return json.loads(
        re.sub(r"(?<![0-9.])[0-9]{14}(?![0-9])", "TIME", out.replace(place, "DATA").replace(str(Path(place)), "DATA"))
    )


@pytest.mark.parametrize("words", [["ac", "-c"], ["vc"], ["ls"], ["ni", "conv1/Conv2D"]], ids=lambda words: words[0])
def test_a_command_says_the_same_of_the_same_data(
    data: Path,
    served: Served,
    tmp_path: Path,
    words: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for number, place in enumerate((str(data), put_in_memory(data, "same"), served.url)):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        found.append(told(["--data", place, "--work", "work", *words, "--json"], place, capfd))
    assert found[0] == found[1] == found[2]


def test_no_more_bytes_are_read_than_from_a_disk(
    data: Path, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    counts = {"disk": 0, "memory": 0}
    read, fetch = local.LocalFile.read_into, RemoteStore.fetch

    def counted(self: local.LocalFile, offset: int, buffer: memoryview) -> None:
        counts["disk"] += len(buffer)
        read(self, offset, buffer)

    def fetched(self: RemoteStore, path: str, start: int, stop: int, size: int) -> bytes:
        counts["memory"] += (stop - start) if self.scheme == "memory" else 0
        return fetch(self, path, start, stop, size)

    monkeypatch.setattr(local.LocalFile, "read_into", counted)
    monkeypatch.setattr(RemoteStore, "fetch", fetched)
    for number, place in enumerate((str(data), put_in_memory(data, "counted"), served.url)):
        assert main(["--data", place, "--work", str(tmp_path / str(number)), "ac", "-c", "--workers", "1"]) == 0
    capfd.readouterr()
    assert counts["disk"] > 100_000
    assert counts["memory"] <= 1.1 * counts["disk"]
    assert served.sent <= 1.1 * counts["disk"]
    assert len(served.listings) == len(set(served.listings))


def counted(call: Any, turns: list[int]) -> Any:
    """A function of a store, and whether each call of it waits for a server."""

    def wrapper(self: RemoteStore, *arguments: Any, **options: Any) -> Any:
        turns.append(self.scheme == "http" and bool(arguments[0]))
        return call(self, *arguments, **options)

    return wrapper


def test_a_study_finds_the_same_of_the_same_data(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate_ranks(tmp_path / "ranks", ranks=2, steps=2, fault_step=1)
    data = tmp_path / "ranks" / truth.data[0]
    turns: list[int] = []
    for name in ("_call", "_together"):
        monkeypatch.setattr(RemoteStore, name, counted(getattr(RemoteStore, name), turns))
    found = []
    with serving(data) as served:
        for number, place in enumerate((str(data), put_in_memory(data, "ranks"), served.url)):
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
            words = ["--data", place, "--work", "work", "ac", "--all", "--workers", "1", "--json"]
            note_unread("of an earlier command", FormatError("io.empty"))
            found.append(told(words, place, capfd))
        assert len(served.asked) < 3 * sum(path.is_file() for path in data.rglob("*"))
    assert found[0]["culprit"]["op"] == truth.culprit
    assert found[0] == found[1] == found[2]
    assert sum(turns) < 70, "answers that are waited for one after the other, of four leaves and three graphs"


def test_tensors_behind_the_heads_of_their_files_are_read_together(
    data: Path, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    turns: list[int] = []
    for name in ("_call", "_together"):
        monkeypatch.setattr(RemoteStore, name, counted(getattr(RemoteStore, name), turns))
    monkeypatch.setattr(remote, "_HEAD", 4096)
    monkeypatch.setattr(remote, "_GATHERED", 1 << 20)
    found: list[Any] = []
    for place in (str(data), served.url):
        (tmp_path / str(len(found))).mkdir()
        monkeypatch.chdir(tmp_path / str(len(found)))
        found.append(told(["--data", place, "--work", "work", "ac", "-c", "--workers", "1", "--json"], place, capfd))
    assert found[0] == found[1]
    assert sum(turns) < 80, "where each of 200 tensors was asked for alone"


def test_a_study_is_done_again_where_a_server_has_other_bytes_of_the_same_size(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, then = (generate_ranks(tmp_path / str(step), ranks=1, steps=2, fault_step=step) for step in (1, 0))
    before, after = tmp_path / "1" / first.data[0], tmp_path / "0" / then.data[0]
    monkeypatch.chdir(tmp_path)
    steps, replaced = [], 0
    with serving(before) as served:
        for _ in range(2):
            files._remote.clear()  # as a process of its own
            assert main(["--data", served.url, "--work", "work", "ac", "--all", "--workers", "1", "--json"]) == 0
            steps.append(json.loads(capfd.readouterr().out)["culprit"]["steps"])
            for path in (one for one in before.rglob("*") if one.is_file()):
                other = (after / path.relative_to(before)).read_bytes()
                if path.read_bytes() != other and path.stat().st_size == len(other):
                    path.write_bytes(other)
                    os.utime(path, (2_000_000_000,) * 2)
                    replaced += 1
    assert replaced
    assert steps == [[1], [0, 1]]


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("modificationTime", 1772409600000, 1772409600001), ("modify", "20260302000000", "20260302000001"),
        ("updated", "2026-03-02T00:00:00Z", "2026-03-02T00:00:01Z"), ("last_write_time", 1772409600.0, 1772409601.0),
        ("ETag", '"a"', '"b"'), ("Last-Modified", "Mon, 02 Mar 2026 00:00:00 GMT", "Mon, 02 Mar 2026 00:00:01 GMT"),
        ("md5Hash", "a", "b"),
    ],
)  # fmt: skip
def test_what_a_store_tells_of_a_change_is_noticed(key: str, one: object, other: object) -> None:
    class Store(AnyFileSystem):  # type: ignore[misc]  # fsspec has no types
        told = one

        def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
            return [{"name": f"{path}/a", "type": "file", "size": 7, key: self.told}]

    folder = path_of("s3://bucket/run")
    found: list[tuple[int, ...]] = []
    for told in (one, one, other):
        Store.told = told
        store = RemoteStore(folder, Store())
        store.entries(folder)
        found += store.content_signatures(folder, ["a"])
    assert found[0] == found[1] != found[2]
    if key == "modificationTime":
        assert found[0][:2] == (7, 1772409600 * 10**9)


def test_a_study_writes_its_results_where_the_url_says_and_goes_on_from_a_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate_ranks(tmp_path / "ranks", ranks=2, steps=1, fault="nan", fault_step=0, statistics=True)
    monkeypatch.chdir(tmp_path)
    words = ["--data", str(tmp_path / "ranks" / truth.data[0]), "--work", "memory://studied/here", "ac", "--all"]
    words += ["--workers", "1", "--csv", "--report"]
    assert main(words) == 0
    told = capfd.readouterr()
    for name in ("study.parquet", "report.html", "redump_config.py"):
        assert f"memory://studied/here/study/{name}" in told.out
    assert "kept in precision_work/study" in told.err
    store = fsspec.filesystem("memory")
    names = [Path(name).name for name in store.find("/studied")]
    assert {"study.parquet", "report.html", "redump_config.py"} < set(names)
    assert sum(name.startswith("result_step_0_rank_") for name in names) == 2
    assert store.cat("/studied/here/study/study.parquet").startswith(b"PAR1")
    assert b"TF_DUMP_STEP" in store.cat("/studied/here/study/redump_config.py")
    assert [path.name for path in (tmp_path / "precision_work/study").glob("*.parquet")] == []


def test_tensors_of_urls_are_shown_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # the name of the file fits its line, however long the folder's is
    values = np.random.default_rng(1).standard_normal((20, 30)).astype("f4")
    np.save(tmp_path / "npu.npy", values)
    np.save(tmp_path / "golden.npy", values + np.float32(0.5))
    memory, found = put_in_memory(tmp_path, "tensors"), []
    with serving(tmp_path) as served:
        for left, right in ((str(tmp_path),) * 2, (memory, served.url), (served.url, memory)):
            texts = []
            for words in (["pt", f"{left}/npu.npy"], ["cp", f"{left}/npu.npy", f"{right}/golden.npy"]):
                assert main(words) == 0
                out = capfd.readouterr().out.replace(left, "DATA").replace(right, "DATA")
                texts.append(re.sub("─+", "─", out))  # as long as the name before it
            found.append(texts)
    assert "600" in found[0][1]
    assert found[0] == found[1] == found[2]


def test_results_are_written_where_the_url_says(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = put_in_memory(data, "written")
    assert main(["--data", place, "--work", "memory://results/here", "vc"]) == 0
    out = capfd.readouterr().out
    assert "memory://results/here/vector_compare/" in out
    names = fsspec.filesystem("memory").find("/results")
    assert [Path(name).suffix for name in names] == [".csv", ".json"]
    assert main(["--data", place, "--work", "memory://results/here", "vcs", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["results"]


def test_a_reproduction_is_written_to_a_disk(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--data", str(data), "--work", "memory://results/here", "repro", "conv1/Conv2D"]
    assert main(words) == 0
    script = capfd.readouterr().out.split("python3 ")[1].strip()
    assert Path(script).is_file()
    assert script.startswith("precision_work/repro/")
    assert main([*words, "memory://results/here/op"]) == 2
    assert "only with folders of this machine" in capfd.readouterr().err
    assert not Path("/memory:").exists()


def test_a_table_from_python(data: Path, served: Served) -> None:
    (on_disk,) = compare(data / "npu/debug_0", data / "tf/dump", workers=1)
    (by_url,) = compare(f"{served.url}/npu/debug_0", f"{served.url}/tf/dump", workers=1)
    assert [repr(row.metrics) for row in by_url.rows] == [repr(row.metrics) for row in on_disk.rows]


def test_nothing_secret_is_shown_or_written(
    data: Path, served: Served, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    served.query = "token=s3cr3t-t0ken"
    host = served.url.removeprefix("http://")
    words = ["--work", str(tmp_path / "work"), "--log-level", "debug"]
    secret = f"http://somebody:pa55word@{host}?{served.query}"
    assert main(["--data", secret, *words, "ac", "-c", "--report", str(tmp_path / "page.html")]) == 0
    said = [*capfd.readouterr()]
    served.query = "token=renewed"  # so the one that is known has expired
    urls._secrets.clear()
    files._remote.clear()
    assert main(["--data", secret, *words, "vc", "-lt", f"{secret}/npu", "-rt", f"{served.url}/tf"]) == 2
    said += capfd.readouterr()
    assert "403" in said[-1] or "no permission" in said[-1]
    written = [path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 3
    for text in (*said, *written):
        assert "pa55word" not in text
        assert "s3cr3t" not in text


def test_a_server_that_does_not_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "SECONDS", 0.2)
    served.answers.clear()
    assert main(["--data", served.url, "ls"]) == 2
    assert "does not answer" in capfd.readouterr().err


def test_a_server_that_lists_nothing(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    served.lists = False
    assert main(["vc", "-lt", f"{served.url}/npu", "-rt", f"{served.url}/tf/dump"]) == 2
    assert "its server does not list it" in capfd.readouterr().err


def test_a_file_that_is_gone_is_a_row_with_its_reason(data: Path) -> None:
    place = put_in_memory(data, "gone")
    memory = fsspec.filesystem("memory")
    store = store_of(path_of(place))
    victim = next(name for name in memory.find("/gone/npu/debug_0/dump") if "Conv2D" in name)
    fetch = memory.cat_file

    def vanishes(name: str, **options: Any) -> bytes:
        if name == victim:
            raise FileNotFoundError(name)
        return bytes(fetch(name, **options))

    store._fs.cat_file = vanishes  # type: ignore[attr-defined]
    try:
        (result,) = compare(f"{place}/npu/debug_0", f"{place}/tf/dump", workers=1)
    finally:
        del store._fs.cat_file  # type: ignore[attr-defined]
    assert any("a listing may have changed" in str(row.reason) for row in result.rows)
    assert sum(row.metrics is not None for row in result.rows) > 50


def test_nothing_is_written_over_http(served: Served) -> None:
    path = path_of(f"{served.url}/new.txt")
    with pytest.raises(OutputError, match="nothing can be written over HTTP"), files.atomic_text(path) as file:
        file.write("x")


def memory() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Million(AnyFileSystem):  # type: ignore[misc]
    """A place of folders with a thousand files each; with a thousand of them it takes a minute, and no more memory."""

    folders = 300

    protocol = "million"
    asked = 0

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        type(self).asked += 1
        is_root = path.strip("/").count("/") == 0
        kind = {"type": "directory", "size": 0} if is_root else {"type": "file", "size": 4096}
        numbers = range(self.folders if is_root else 1000)
        return [{"name": f"{path.rstrip('/')}/a_name_as_long_as_those_of_dumps_{i:04}", **kind} for i in numbers]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "type": "directory", "size": 0}


def test_very_many_files_are_listed_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_MAX_ENTRIES", 20_000)
    root = path_of("million://bucket")
    files._remote[os.getpid(), "million:/bucket", ""] = RemoteStore(root, _Million())
    before = most = memory()
    count = 0
    for _, names in list_folders(root):
        count += len(names)
        most = max(most, memory())
    assert count == _Million.folders * 1000
    assert _Million.asked == _Million.folders + 1  # each folder once
    assert most - before < 50 << 20  # where all of them take several times as much


def test_names_of_a_listing_are_only_names(tmp_path: Path) -> None:
    (tmp_path / "a b#c%20é").mkdir()
    (tmp_path / "x.npy").write_bytes(b"12345")
    with serving(tmp_path) as server:
        server.more_links = (
            '<a href="/etc/passwd">1</a><a href="..%2f..%2fx">2</a><a href="http://far/x">3</a><a href="?C=N">4</a>'
            '<a href="%2e%2e/">5</a><a href="x/y">6</a><a href="#top">7</a>'
        )
        store = store_of(path_of(server.url))
        assert store.entries(path_of(server.url)) == [
            Entry(name="a b#c%20é", kind=Kind.FOLDER), Entry(name="x.npy", kind=Kind.FILE)
        ]  # fmt: skip
        assert store.entries(path_of(server.url) + "/a b#c%20é") == []
        with store.open(path_of(server.url) + "/x.npy") as file:
            assert (file.size, file.read_at(1, 3)) == (5, b"234")


def test_what_stands_for_a_url() -> None:
    path = path_of("s3://key:word@bucket/run/npu/?versionId=12345")
    assert path == "/s3:/bucket/run/npu"
    assert urls.secret_of(path + "/x") == ("key:word", "versionId=12345")
    assert urls.url_of(path) == "s3://bucket/run/npu"
    assert urls.shown(f"error: {path}: see s3://a:b@c/d?e=f and 12345") == (
        "error: s3://bucket/run/npu: see s3://c/d and 12345"
    )
    assert [path_of(text) for text in ("tcp://h:1", "a/b", "x.y:z")] == ["tcp://h:1", "a/b", "x.y:z"]
    assert not urls.is_remote("/data/s3:/x")


def test_a_url_is_a_path_whatever_its_case_and_the_signs_in_it() -> None:
    assert path_of("S3://bucket/run#2/NPU") == "/s3:/bucket/run#2/NPU"
    assert path_of("memory://run#2") == "/memory:/run#2"
    assert path_of("s3://arn:aws:s3:eu:1:accesspoint/x") == "/s3:/arn:aws:s3:eu:1:accesspoint/x"
    assert path_of("hdfs://[::1]:8020/x") == "/hdfs:/[::1]:8020/x"
    for url in ("file:///a/b#c?d", "FILE://localhost/a/b#c?d", "local:///a/b#c?d"):
        assert path_of(url) == "/a/b#c?d"
    assert path_of("TCP://host:1") == "TCP://host:1"


@pytest.mark.parametrize(
    "text",
    [
        "http://me:secret@host/run#2", "https://host/x?secret#2", " s3://me:secret@bucket/x", "3s://me:secret@bucket/x",
        "s3://me:sec/secret@bucket/x", "s3://me:sec?secret@bucket/x", "s3://me:sec#secret@bucket/x", "file://secret/x",
        "./s3://me:secret@bucket", "http://host?secret@other",
    ],
)  # fmt: skip
def test_what_is_like_a_url_and_names_no_place_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["--data", text, "ac", "-c"], ["vc", "-lt", text, "-rt", text]):
        assert main(words) == 2
        assert "secret" not in str(capfd.readouterr())
    assert list(tmp_path.iterdir()) == []


def test_data_of_this_machine_may_be_named_by_a_url(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", f"file://{data}", "ls", "--json"]) == 0
    by_url = capfd.readouterr().out
    assert main(["--data", str(data), "ls", "--json"]) == 0
    assert by_url == capfd.readouterr().out


def test_no_text_holds_what_was_secret_in_any_url() -> None:
    assert urls.scrubbed("cannot open s3://me:p@ssw0rd@host/x") == "cannot open s3://host/x"
    for url in (
        "ssh://me:p%40ss%21word@host/1", "http://me:first-word@host/2", "http://me:later-word@host/2",
        "http://host/3?sig=t0k%2Fen&sp=read", "http://bearer-of-all@host/4",
    ):  # fmt: skip
        path_of(url)
    known = urls.secrets()
    for name in ("_given", "_secrets"):
        getattr(urls, name).clear()
    urls.take_secrets(known)  # as a worker does
    told = urls.scrubbed(
        "p@ss!word, p%40ss%21word, p%40ss!word, first-word, later-word, sig=t0k/en&sp=read, t0k/en, bearer-of-all, read"
    )
    assert told == "***, ***, ***, ***, ***, ***, ***, ***, read"


def test_each_place_of_a_host_is_asked_with_its_own_secret() -> None:
    path_of("http://host/data/npu?sig=npu")
    assert urls.secret_of("/http:/host/tf").query == "sig=npu", "the only one of its host"
    path_of("http://host/data/tf?sig=tf")
    path_of("http://host/data/tf/dump")
    path_of("http://me:word@host/more")
    path_of("http://you:word@host/most")
    asked = {
        place: tuple(urls.secret_of(f"/http:/host/{place}"))
        for place in ("data/npu", "data/npu/x/y", "data/npu2", "data", "data/tf/dump/x", "other", "more/x", "most")
    }
    assert asked == {
        "data/npu": ("", "sig=npu"), "data/npu/x/y": ("", "sig=npu"), "data/npu2": ("", ""), "data": ("", ""),
        "data/tf/dump/x": ("", "sig=tf"), "other": ("", ""), "more/x": ("me:word", ""), "most": ("you:word", ""),
    }  # fmt: skip
    assert urls.secret_of("/http:/host2/data/npu") == ("", "")
    assert store_of("/http:/host/more/x") is store_of("/http:/host/more")
    assert store_of("/http:/host/more") is not store_of("/http:/host/most")


def test_a_server_gets_the_query_of_each_folder(tmp_path: Path) -> None:
    for name in ("npu", "tf"):
        (tmp_path / name).mkdir()
    with serving(tmp_path) as server:
        places = [path_of(f"{server.url}/{name}?sig={name}") for name in ("npu", "tf")]
        for place in places:
            server.query = f"sig={place[-3:].strip('/')}"
            assert store_of(place).entries(place) == []


def test_without_fsspec_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["--data", "memory://x", "ls"]) == 2
    err = capfd.readouterr().err
    assert "memory://x: URLs need fsspec" in err
    assert "pip install" in err
    assert main(["--data", "memory://x", "train", "x.py"]) == 2
    assert "only with folders of this machine" in capfd.readouterr().err


def test_a_scheme_that_is_none_is_told() -> None:
    with pytest.raises(UsageError, match="nonsense:// is not a scheme"):
        store_of(path_of("nonsense://x/y"))


def test_what_is_not_there_is_told(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    for place in (f"{served.url}/none", "memory://none"):
        assert main(["--data", place, "vc"]) == 2
        assert place in capfd.readouterr().err
    name = next(path.name for path in (served.root / "tf/dump").iterdir())
    with pytest.raises(DataNotFoundError, match="a file where a folder"):
        store_of(path_of(served.url)).entries(path_of(f"{served.url}/tf/dump/{name}"))


class NoSuchFileError(Exception):
    """As asyncssh's: of no kind of Python's own."""


NoSuchFileError.__name__ = "SFTPNoSuchFile"


class Ssh:
    """A file system that hands options which it does not know on to what connects, as those of ssh do."""

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, Any]:
        return {"host": url.split("/")[2]}

    @classmethod
    def _strip_protocol(cls, url: str) -> str:
        return "/" + url.split("/", 3)[3]

    def __init__(self, host: str, *, known_hosts: object = None, skip_instance_cache: bool = False) -> None:
        assert host == "bob:pa55@server"
        assert known_hosts is not None, "None of asyncssh's is: any server is believed"

    listed: ClassVar[dict[str, dict[str, str]]] = {"/data": {"a.npy": "file"}}
    behind: ClassVar[dict[str, str]] = {}

    def _told(self, path: str, kind: str) -> dict[str, Any]:
        size = {"file": 7, "link": 23}.get(kind, 4096)
        return {"name": path, "type": kind, "size": size, "mtime": datetime(2026, 3, 2, tzinfo=UTC)}

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        if path not in self.listed:
            raise NoSuchFileError("No such file or directory")
        return [self._told(f"{path}/{name}", kind) for name, kind in self.listed[path].items()]

    def info(self, path: str) -> dict[str, Any]:
        if path not in self.behind:
            raise NoSuchFileError("No such file or directory")
        return self._told(path, self.behind[path])

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        return b"1234567"[start:end]


def test_a_server_of_ssh_is_asked_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_secrets", dict(urls._secrets))
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: Ssh)
    path = urls.path_of("ssh://bob:pa55@server/data")
    store = RemoteStore(path)
    assert [one.name for one in store.entries(path)] == ["a.npy"]
    assert [one[:2] for one in store.content_signatures(path, ["a.npy"])] == [(7, 1772409600 * 10**9)]
    elsewhere = path.replace("/data", "/other")
    assert store.stat(elsewhere) is None
    with pytest.raises(DataNotFoundError):
        store.entries(elsewhere)


class LinkedSsh(Ssh):
    """One with symbolic links, which it lists as what they are themselves, and follows when it is asked for one."""

    listed: ClassVar[dict[str, dict[str, str]]] = {"/data": {"step": "link", "a.npy": "link", "gone.npy": "link"}}
    behind: ClassVar[dict[str, str]] = {"/data/step": "directory", "/data/a.npy": "file"}


def test_symbolic_links_of_a_server_of_ssh_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: LinkedSsh)
    path = urls.path_of("ssh://bob:pa55@server/data")
    store = RemoteStore(path)
    kinds = {one.name: one.kind for one in store.entries(path)}
    assert kinds == {"a.npy": Kind.FILE, "gone.npy": Kind.FILE, "step": Kind.FOLDER}
    assert [one[:2] for one in store.content_signatures(path, ["a.npy", "gone.npy"])] == [
        (7, 1772409600 * 10**9),
        (0, 0),
    ]
    assert store.open(f"{path}/a.npy").read_at(0, 7) == b"1234567"
    with pytest.raises(DataNotFoundError, match=r"gone\.npy: no such file"):
        store.open(f"{path}/gone.npy")


class UnknownServerError(Exception):
    """As paramiko's SSHException."""


def test_a_server_of_ssh_with_a_key_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        """As paramiko's: what to do with an unknown key is up to the policy."""

        def __init__(self) -> None:
            self.known: set[str] = set()

        def load_system_host_keys(self) -> None:
            self.known.add("known")

        def set_missing_host_key_policy(self, policy: Any) -> None:
            self.policy = policy

        def connect(self, host: str, **_: Any) -> None:
            if host not in self.known:
                self.policy.missing_host_key(self, host, None)

        def open_sftp(self) -> str:
            return "connected"

    class Add:
        def missing_host_key(self, client: Any, host: str, key: Any) -> None:
            client.known.add(host)

    class Reject:
        def missing_host_key(self, client: Any, host: str, key: Any) -> None:
            raise UnknownServerError(f"Server {host!r} not found in known_hosts")

    paramiko: Any = ModuleType("paramiko")
    paramiko.SSHClient, paramiko.AutoAddPolicy, paramiko.RejectPolicy, paramiko.WarningPolicy = Client, Add, Reject, Add
    paramiko.MissingHostKeyPolicy = Add
    monkeypatch.setitem(sys.modules, "paramiko", paramiko)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    sftp = importlib.import_module("fsspec.implementations.sftp")
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: sftp.SFTPFileSystem)
    try:
        assert filesystem_of(urls.path_of("ssh://known/data")).ftp == "connected"
        with pytest.raises(
            FormatError, match=r"the server's key is unknown or has changed .*'other' not found"
        ) as caught:
            filesystem_of(urls.path_of("ssh://other/data"))
    finally:
        sys.modules.pop("fsspec.implementations.sftp")
    assert "known_hosts" in caught.value.hint


def test_a_run_of_tfdbg_that_a_server_does_not_list_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = "/old/run_1600000000000002_2"

    class Refusing(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]  # fsspec has no types
        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            if path.rstrip("/").endswith(refused):
                raise PermissionError("AccessDenied")
            return super().ls(path, detail=detail, **options)

    store = Refusing()
    for number in (1, 2):
        run = f"memory://tfdbg/old/run_160000000000000{number}_{number}"
        store.pipe_file(f"{run}/_tfdbg_device_,job_localhost/relu_0_DebugIdentity_1600000000000003", b"x")
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: Refusing)
    place = urls.path_of("memory://tfdbg")
    runs = find_runs(place)
    assert [run.number for run in runs] == [1, 2], "the newer one is not forgotten: its tensors count"
    ((path, reason),) = files_of_run(runs[1]).unreadable
    assert path.endswith(refused)
    assert "no permission" in str(reason)
    assert find_runs(f"{place}/none") == []
    refused = "/old"
    monkeypatch.setattr(files, "_remote", {})
    with pytest.raises(FormatError, match="no permission"):
        find_runs(place)


def test_a_folder_of_a_server_is_not_taken_for_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert without_folder(f"{tmp_path}/a: cut off, as {tmp_path}/b is") == "a: cut off, as b is"
    there = f"ssh://server:22{tmp_path}/a: cut off"
    assert without_folder(there) == there


class ExpiredError(Exception):
    """As that of a cloud's library, of no kind of Python's own."""


def test_credentials_that_have_expired_are_told_as_such() -> None:
    class Bucket(AnyFileSystem):  # type: ignore[misc]  # fsspec has no types
        def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
            raise ExpiredError("An error occurred (ExpiredToken) when calling the ListObjectsV2 operation")

    store = RemoteStore(urls.path_of("s3://bucket/run"), Bucket())
    with pytest.raises(FormatError, match=r"no permission to read it .*ExpiredToken") as caught:
        store.entries(urls.path_of("s3://bucket/run"))
    assert "renew the credentials" in caught.value.hint


class NoCredentialsError(Exception):
    """As botocore's, where nothing is set."""


def test_credentials_that_are_not_set_are_told_as_such() -> None:
    told = error_of("s3://bucket/run", NoCredentialsError("Unable to locate credentials"))
    assert "no permission to read it (NoCredentialsError: Unable to locate credentials)" in str(told)
    assert "set or renew the credentials" in told.hint


def test_whole_files_do_not_take_all_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server without ranges only so many small files stay open."""

    def spool(path: str, method: str, name: str, file: IO[bytes], **_: Any) -> dict[str, Any]:
        file.write(b"x")
        file.flush()
        return {"name": name, "type": "file", "size": 1}

    monkeypatch.setattr(remote, "_MAX_OPEN", 3)
    store = remote.RemoteStore("/http:/host/a", filesystem=SimpleNamespace(async_impl=False))
    monkeypatch.setattr(store, "_call", spool)
    for number in range(9):
        store._fetch_whole(f"/http:/host/a/{number}", f"/http:/host/a/{number}")
    descriptors = [descriptor for _, descriptor, _ in store._wholes.values()]
    assert len(descriptors) == 3
    assert [os.pread(each, 1, 0) for each in descriptors] == [b"x"] * 3
