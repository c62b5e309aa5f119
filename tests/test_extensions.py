"""The registries: one contract for all, and what third parties add by the entry points of their packages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Finished, tool
from small_tree import Node, chain, faulty_chain, small_tree, values

from precision_tool.lib import extensions
from precision_tool.lib.diagnose.run_checks import RUN_CHECKS
from precision_tool.lib.extensions import Registry, take_notes
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.readers import READERS, Reader
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.ops.base import OPS, Call, Kind, NotComputedError, OpSpec

Installed = Callable[..., None]

REGISTRIES: dict[str, Registry[Any]] = {"readers": READERS, "ops": OPS, "checks": RUN_CHECKS}


def write_package(folder: Path, module: str, source: str, **groups: str) -> None:
    """A package as pip installs it: a module, and a folder with its metadata."""
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = "".join(f"[precision_tool.{group}]\n{lines}\n" for group, lines in groups.items())
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Puts a package on the path of this process, whose registries have not been asked yet."""

    def install(module: str, source: str, **groups: str) -> None:
        write_package(tmp_path, module, source, **groups)
        extensions._installed.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    extensions._installed.cache_clear()
    take_notes()


def new_registry(group: str = "things", **built_in: str) -> Registry[str]:
    def accept(name: str, thing: object) -> str:
        if not isinstance(thing, str):
            raise TypeError("a text is needed")
        return thing

    return Registry(group, built_in, accept)


# --- the mechanism ----------------------------------------------------------------------------------------------------


def test_third_parties_are_asked_for_what_is_lacking(installed: Installed) -> None:
    installed("colours", "RED, BLUE = 'red', 'blue'", things="red = colours:RED\nblue = colours:BLUE")
    registry = new_registry(green="green")
    assert registry.get("green") == "green"
    assert "_entry_points" not in vars(registry), "nobody was asked for what is built in"
    assert (registry.get("red"), registry.get("black")) == ("red", None)
    assert registry.all() == {"green": "green", "red": "red", "blue": "blue"}
    assert take_notes() == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('no licence')", "OSError: no licence"),
        ("import nothing_of_this_name", "nothing_of_this_name"),
        ("RED = 7", "a text is needed"),
        ("", "has no attribute 'RED'"),
    ],
)
def test_an_entry_that_cannot_be_used_is_a_note(installed: Installed, source: str, reason: str, request: Any) -> None:
    module = f"broken_{abs(hash(request.node.name))}"
    installed(module, source, things=f"red = {module}:RED")
    registry = new_registry(green="green")
    assert registry.all() == {"green": "green"}
    assert registry.get("red") is None
    (note,) = take_notes()
    assert note.startswith(f"precision_tool.things: red ({module}:RED) is left out: ")
    assert reason in note


def test_what_is_built_in_is_not_replaced(installed: Installed) -> None:
    installed("paint", "GREEN = 'other'", things="green = paint:GREEN")
    registry = new_registry(green="green")
    assert registry.all() == {"green": "green"}
    (note,) = take_notes()
    assert "the one of this name is built in" in note


# --- what is built in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
class TestRegistryContract:
    """Every registry answers alike."""

    def test_it_finds_each_of_its_entries(self, registry: Registry[Any]) -> None:
        assert registry.built_in
        assert all(registry.get(name) is entry for name, entry in registry.built_in.items())
        assert list(registry.all())[: len(registry.built_in)] == list(registry.built_in)

    def test_it_lacks_others(self, registry: Registry[Any]) -> None:
        assert registry.get("nothing of this name") is None

    def test_an_entry_of_another_kind_is_refused(
        self, registry: Registry[Any], installed: Installed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = registry.group.rpartition(".")[2]
        installed(f"odd_{group}", "THING = None", **{group: f"Odd = odd_{group}:THING"})
        fresh = Registry(group, registry.built_in, registry._accept)
        assert fresh.all() == dict(registry.built_in)
        assert len(take_notes()) == 1


@pytest.mark.parametrize("reader", READERS.built_in.values(), ids=READERS.built_in)
class TestReaderContract:
    def test_it_takes_no_empty_file_and_no_noise(self, reader: Reader) -> None:
        assert not any(map(reader.fits, (b"", b"\0" * 256, bytes(range(256)))))

    @pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\0" * 40])
    def test_damage_is_the_users_error(self, reader: Reader, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(content)
        with open_file(str(tmp_path / "file")) as file, pytest.raises(FormatError):
            reader.read(file)


@pytest.mark.parametrize("name", OPS.built_in)
def test_every_formula_keeps_the_contract(name: str) -> None:
    spec = OPS.get(name)
    assert isinstance(spec, OpSpec)
    assert spec.op_type == name
    assert isinstance(spec.kind, Kind)
    try:
        outputs = spec.function(Call(op_type=name, inputs=()))
    except NotComputedError:
        return
    assert all(output is None or isinstance(output.array, np.ndarray) for output in outputs)


@pytest.mark.parametrize("name", RUN_CHECKS.built_in)
def test_every_check_keeps_the_contract(name: str) -> None:
    try:
        result = RUN_CHECKS.built_in[name]((), (), {})
    except PrecisionToolError:
        return
    assert isinstance(result, CheckResult)
    assert result.name == name
    assert (result.finding is None) != (result.skipped is None)


# --- a third party's packages, as a user has them ---------------------------------------------------------------------

READER = """
import struct
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.io.readers import Reader
from precision_tool.lib.model.tensor import OpDump, Tensor

def read(file):
    count, = struct.unpack("<I", file.read_at(8, 4))
    if file.size != 12 + 4 * count:
        raise FormatError.of(file.path, "is cut off", "get it again", offset=file.size)
    tensor = Tensor(path=file.path, offset=12, nbytes=4 * count, dtype="float32", shape=(count,))
    return OpDump(path=file.path, outputs=(tensor,))

PLAIN = Reader(lambda head: head.startswith(b"PLAINF32"), read)
"""

OP = """
from precision_tool.lib.ops.base import Kind, Output, needed, op

@op("Halve", kind=Kind.EXACT, inputs=("x",))
def halve(call):
    return [Output(array=needed(call, 0).array / 2)]
"""

CHECK = """
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind, Grade

def count_ops(runs, missing, known):
    ops = sum(len(graph.ops) for run in runs for graph in run.file.graphs)
    message = Message("text", text=f"{ops} ops are too few")
    facts = (Fact("ops", str(ops)),)
    finding = Finding(kind=FindingKind.THIRD_PARTY, grade=Grade.WARNING, message=message, facts=facts)
    return CheckResult(name="any", finding=finding, looked_at=Message("text", text="the graphs"))

def fail(runs, missing, known):
    raise ZeroDivisionError("no ops")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment in which three packages are installed, and a fourth that cannot be loaded."""
    folder = tmp_path_factory.mktemp("site")
    write_package(folder, "plain_reader", READER, readers="plain = plain_reader:PLAIN")
    write_package(folder, "halve_op", OP, ops="Halve = halve_op")
    write_package(folder, "op_count", CHECK, checks="op_count = op_count:count_ops\nfailing = op_count:fail")
    write_package(folder, "broken", "raise ImportError('no licence')", checks="broken = broken:check")
    return {"PYTHONPATH": f"{folder}:{Path(__file__).parents[1]}"}


def plain_file(path: Path, values: np.ndarray[Any, Any]) -> Path:
    path.write_bytes(b"PLAINF32" + np.uint32(values.size).tobytes() + values.astype("<f4").tobytes())
    return path


def test_a_reader_is_used_by_pt_and_dc(site: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "precision_data").mkdir()
    file = plain_file(tmp_path / "Op.x.1.2.1600000000000000", np.arange(6))
    assert "2.5" in tool("pt", file, cwd=tmp_path, env=site).text
    tool("dc", file, "-o", tmp_path / "out", cwd=tmp_path, env=site)
    (decoded,) = (tmp_path / "out").rglob("*.npy")
    assert np.load(decoded).tolist() == [0, 1, 2, 3, 4, 5]
    file.write_bytes(file.read_bytes()[:-4])
    assert "is cut off" in tool("pt", file, cwd=tmp_path, env=site, code=2).text


def in_data_folder(tmp_path: Path, env: Mapping[str, str], *options: str) -> Finished:
    small_tree(tmp_path / "precision_data", faulty_chain())
    return tool("ac", "-c", *options, cwd=tmp_path, env=env)


def test_a_check_is_shown_by_ac_and_a_broken_one_is_a_note(site: Mapping[str, str], tmp_path: Path) -> None:
    run = in_data_folder(tmp_path, site, "-v")
    assert "op_count" in run.text
    assert "ops are too few" in run.text
    assert "skipped (ZeroDivisionError: no ops)" in run.text
    assert "broken (broken:check) is left out: ImportError: no licence" in run.text


def halving(output: list[float]) -> list[Node]:
    """A chain in whose middle `Halve`, which only a third party knows, puts this out."""
    source, data, first, *_ = chain()
    right = values(2.5, 3, 3.5)
    return [
        source, data, first,
        Node(name="middle/Halve", type="Halve", inputs=(first,), output=values(*output), golden=right),
    ]  # fmt: skip


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_formula_is_used_by_the_verdict(site: Mapping[str, str], tmp_path: Path, is_installed: bool) -> None:
    small_tree(tmp_path / "precision_data", halving([2.5, 3, 9]))
    env = site if is_installed else {"PYTHONPATH": str(Path(__file__).parents[1])}
    tool("ac", "-c", cwd=tmp_path, env=env)
    (op,) = json.loads(tool("ni", "middle/Halve", "--json", cwd=tmp_path, env=env).out)["ops"]
    judged = op["verdict"]
    assert judged["state"] == ("wrong" if is_installed else "not_recomputed")
    if is_installed:  # |(0, 0, 5.5)| by |(2.5, 3, 3.5)|
        assert judged["own_error"] == pytest.approx(5.5 / np.hypot(2.5, np.hypot(3, 3.5)))
