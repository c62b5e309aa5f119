"""What `scripts/release` builds; wheels installed into fresh environments: Python 3.11 and newer, and 3.7."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from precision_tool import __version__
from precision_tool.cli import DEPENDENCIES
from precision_tool.lib.io.native import library

REPO = Path(__file__).resolve().parents[1]
#: Folders and files of the project that a source distribution is made of.
SOURCES = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "README.zh-CN.md", "CHANGELOG.md", "LICENSE",
    "config.example.py", ".github", "precision_tool", "scripts", "tests",
)  # fmt: skip
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.so", "node_modules", ".*_cache")

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command that must end with `code`, without this environment's Python settings."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is needed to build: building leaves files behind."""
    folder = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (REPO / name).is_dir():
            shutil.copytree(REPO / name, folder / name, ignore=LEFT_BEHIND)
        else:
            shutil.copy(REPO / name, folder / name)
    return folder


def build(python: object, sources: Path, target: Path) -> Path:
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, ".", cwd=sources)
    (wheel,) = target.glob("*.whl")
    return wheel


def install(python: object, wheel: Path, folder: Path, *pip: object) -> Path:
    """The folder of programs of a new environment that holds the wheel."""
    run(python, "-m", "venv", *(["--without-pip"] if pip else []), folder, cwd=folder.parent)
    programs = folder / "bin"
    run(*(pip or (programs / "python", "-m", "pip")), "install", "--quiet", "--no-compile", wheel, cwd=folder.parent)
    return programs


def installed(programs: Path, *pip: object) -> set[str]:
    listing = run(*(pip or (programs / "python", "-m", "pip")), "list", "--format=json", cwd=programs)
    return {package["name"].lower() for package in json.loads(listing.stdout)}


@pytest.fixture(scope="module")
def dist(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `scripts/release` publishes for this machine and, if there is a compiler, for ARM; built without git."""
    machines = {platform.machine()} | ({"aarch64"} if shutil.which("aarch64-linux-gnu-gcc") else set())
    target = tmp_path_factory.mktemp("release") / "dist"
    words = ("--machines", " ".join(sorted(machines)), "--out", target)
    run(sys.executable, "scripts/release.py", *words, cwd=sources)
    assert len(list(target.glob("*.whl"))) == len(machines) + 1
    return target


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel for this machine, with the compiled kernel."""
    return next(dist.glob(f"*_{platform.machine()}.whl"))


@pytest.fixture(scope="module")
def plain_wheel(dist: Path) -> Path:
    """The wheel for every other machine."""
    return next(dist.glob("*-any.whl"))


@pytest.fixture(scope="module")
def release() -> Any:
    """The module of scripts/release."""
    spec = importlib.util.spec_from_file_location("release_script", REPO / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def python37() -> str:
    """A Python 3.7: the one scripts/test found, or found the same way."""
    find = ["bash", "-c", ". scripts/common.sh; find_python 3.7"]
    found = os.environ.get("PYTHON37") or subprocess.check_output(find, cwd=REPO, text=True).strip()
    if not found:
        assert os.environ.get("CI") != "true", "CI must have a Python 3.7"
        pytest.skip("no Python 3.7 on this machine")
    return found


def test_the_wheel_holds_everything(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        str(path.relative_to(REPO))
        for path in (REPO / "precision_tool").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert package | {"precision_tool/lib/config/config.example.py"} <= names
    assert {name for name in names if not name.startswith("precision_tool")} == set()
    assert any(name.endswith("LICENSE") for name in names)
    assert {"fusion_off.cfg", "fusion_switch.cfg"} <= {Path(name).name for name in names}


def test_a_source_distribution_holds_all_tests_and_the_example(dist: Path, sources: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        members = archive.getmembers()
        files = {member.name.partition("/")[2]: member for member in members if member.isfile()}
        example = archive.extractfile(files["config.example.py"])
        assert example is not None
        assert example.read() == (REPO / "precision_tool/lib/config/config.py").read_bytes()
    assert {"CHANGELOG.md", "LICENSE", "scripts/release", ".github/SECURITY.md"} <= set(files)
    for folder in ("tests", "scripts"):
        ours = {str(path.relative_to(sources)) for path in (sources / folder).rglob("*") if path.is_file()}
        assert {name for name in ours if "__pycache__" not in name} <= set(files)
    assert not [name for name in files if name.endswith((".pyc", ".so"))]
    # Nothing of who built it, and when.
    assert {(member.uid, member.uname, member.mode) for member in members} == {(0, "", 0o644), (0, "", 0o755)}
    assert len({member.mtime for member in members}) == 1


def test_without_a_compiler_the_wheel_is_for_every_machine(plain_wheel: Path) -> None:
    with zipfile.ZipFile(plain_wheel) as archive:
        names = archive.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(about).decode().splitlines()
    assert "precision_tool/__init__.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_the_kernel_needs_only_an_old_glibc_and_names_no_folder(dist: Path) -> None:
    wheels = [path for path in dist.glob("*.whl") if not path.name.endswith("-any.whl")]
    for path in wheels:
        assert "-py3-none-manylinux_2_17_" in path.name
        kernel = zipfile.ZipFile(path).read("precision_tool/lib/io/native/kernel.compiled.so")
        # What wants the newest `log` names a newer version; a search path would be the folder of who built it.
        assert set(re.findall(rb"GLIBC_[\d.]+", kernel)) <= {b"GLIBC_2.2.5", b"GLIBC_2.17"}
        assert not re.search(rb"/(?:home|tmp|root|usr)/", kernel)


def test_the_checksums_are_those_of_all_files(dist: Path) -> None:
    lines = (dist / "SHA256SUMS").read_text("utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = [path for path in dist.iterdir() if path.name != "SHA256SUMS"]
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert [path.name for path in dist.parent.iterdir()] == ["dist"]  # nothing temporary is left


def test_the_bill_of_materials_names_what_is_contained_and_needed(dist: Path, wheel: Path, sources: Path) -> None:
    (path,) = dist.glob("*.cdx.json")
    with zipfile.ZipFile(wheel) as archive:
        (inside,) = (name for name in archive.namelist() if "/sboms/" in name)
        assert archive.read(inside) == path.read_bytes()
    components = {part["name"]: part for part in json.loads(path.read_text("utf-8"))["components"]}
    needed = {name for name, part in components.items() if part["scope"] == "required" and "hashes" not in part}
    assert needed == set(DEPENDENCIES)
    contained = {name: part for name, part in components.items() if "hashes" in part}
    named = json.loads((sources / "scripts/page/package.json").read_text("utf-8"))["dependencies"]
    assert named.items() <= {name: part["version"] for name, part in contained.items()}.items()
    assert all(part["licenses"] and len(part["hashes"][0]["content"]) == 128 for part in contained.values())
    assert {"h5py", "protobuf", "distributed"} <= {n for n, part in components.items() if part["scope"] == "optional"}
    assert not {"pytest", "auditwheel"} & set(components)


def test_what_is_not_as_it_says_is_not_published(dist: Path, wheel: Path, release: Any, tmp_path: Path) -> None:
    def refused(name: str, without: str = "", kernel: bytes | None = None) -> str:
        """The reason, for the wheel under another name, without some files or with another kernel."""
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tmp_path / name, "w") as new:
            for entry in old.namelist():
                if not without or without not in entry:
                    is_kernel = kernel is not None and entry == release.KERNEL
                    new.writestr(entry, kernel if is_kernel and kernel is not None else old.read(entry))
        with pytest.raises(release.ReleaseError) as caught:
            release.check(tmp_path / name)
        return str(caught.value)

    machine, other = ("x86_64", "aarch64") if platform.machine() == "x86_64" else ("aarch64", "x86_64")
    release.check(wheel)
    assert "another machine" in refused(wheel.name.replace(machine, other))
    assert "no compiled kernel" in refused(wheel.name, without=".so")
    assert "no SBOM" in refused(wheel.name, without="/sboms/")
    assert "has a compiled kernel" in refused(wheel.name.replace(f"manylinux_2_17_{machine}", "any"))
    newest = (Path(library.__file__).parent / "kernel.compiled.so").read_bytes()  # of this machine's own glibc
    if b"GLIBC_2.29" in newest:
        assert "needs manylinux_2_3" in refused(wheel.name, kernel=newest)
    again = tmp_path / "again"
    shutil.copytree(dist, again)
    release.compare(dist, again)
    (again / wheel.name).write_bytes(b"another")
    with pytest.raises(release.ReleaseError, match=f"differ in {wheel.name}"):
        release.compare(dist, again)


def test_an_installation(wheel: Path, tmp_path: Path) -> None:
    pip = sys.executable, "-m", "pip", "--python", tmp_path / "venv"  # to give the environment one takes longer
    programs = install(sys.executable, wheel, tmp_path / "venv", *pip)
    empty = tmp_path / "empty"
    empty.mkdir()
    tool = programs / "precision-tool"
    assert run(tool, "-h", cwd=empty).stdout.startswith("usage: precision-tool")
    assert run(tool, "--version", cwd=empty).stdout == f"precision-tool {__version__}\n"
    names = installed(programs, *pip)
    assert {"numpy", "ml_dtypes", "rich"} <= {name.replace("-", "_") for name in names}
    assert not {"protobuf", "pytest"} & names
    paths = "import precision_tool.tf_config as c, os; print(os.path.isfile(c.FUSION_OFF_FILE))"
    assert run(programs / "python", "-c", paths, cwd=empty).stdout == "True\n"
    assert list(empty.iterdir()) == []


def test_an_installation_on_python_3_7_is_the_training_side(plain_wheel: Path, python37: str, tmp_path: Path) -> None:
    programs = install(python37, plain_wheel, tmp_path / "venv")
    assert "precision-tool" in installed(programs)
    assert not {"numpy", "ml-dtypes", "ml_dtypes", "rich"} & installed(programs)
    answer = run(programs / "precision-tool", "ac", "-c", cwd=tmp_path, code=2)
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ac needs Python 3.11 or newer, this is Python 3.7.")
    paths = "import precision_tool.tf_config as c, os; print(os.path.isfile(c.FUSION_SWITCH_FILE))"
    assert run(programs / "python", "-W", "error", "-c", paths, cwd=tmp_path).stdout == "True\n"


def test_python_3_7_builds_the_same_wheel(wheel: Path, sources: Path, python37: str, tmp_path: Path) -> None:
    """Its newest setuptools is years older than ours."""
    programs = tmp_path / "venv" / "bin"
    run(python37, "-m", "venv", programs.parent, cwd=tmp_path)
    other = build(programs / "python", sources, tmp_path / "wheel")

    def package_files(path: Path) -> list[str]:
        return sorted(name for name in zipfile.ZipFile(path).namelist() if name.startswith("precision_tool/"))

    assert other.name == wheel.name.replace("manylinux_2_17_", "linux_")
    assert package_files(other) == package_files(wheel)
