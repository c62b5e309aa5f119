"""The built wheel, installed into fresh environments: Python 3.11 and newer, and 3.7."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from precision_tool import __version__

REPO = Path(__file__).resolve().parents[1]
#: Folders and files of the project that a source distribution is made of.
SOURCES = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "README.zh-CN.md", "CHANGELOG.md", "LICENSE",
    "config.example.py", ".github", "precision_tool", "scripts", "tests",
)  # fmt: skip
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.so", "node_modules", ".*_cache")

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, code: int = 0, compiler: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command that must end with `code`, without this environment's Python settings."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    if compiler:
        environment["CC"] = compiler
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


def build(python: object, sources: Path, target: Path, compiler: str = "") -> Path:
    run(
        python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, ".", cwd=sources, compiler=compiler
    )
    (wheel,) = target.glob("*.whl")
    return wheel


def install(python: object, wheel: Path, folder: Path) -> Path:
    """The folder of programs of a new environment that holds the wheel."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder.parent)
    return folder / "bin"


def installed(programs: Path) -> set[str]:
    listing = run(programs / "python", "-m", "pip", "list", "--format=json", cwd=programs)
    return {package["name"].lower() for package in json.loads(listing.stdout)}


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(sys.executable, sources, tmp_path_factory.mktemp("wheel"))


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


def test_a_source_distribution_holds_all_tests_and_the_example(sources: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, cwd=sources)
    with tarfile.open(next(tmp_path.iterdir())) as archive:
        files = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
        example = archive.extractfile(files["config.example.py"])
        assert example is not None
        assert example.read() == (REPO / "precision_tool/lib/config/config.py").read_bytes()
    assert {"CHANGELOG.md", "tests/conftest.py"} <= set(files)
    assert {str(path.relative_to(sources)) for path in (sources / "tests").rglob("*.*") if path.is_file()} <= set(files)
    assert not [name for name in files if name.endswith((".pyc", ".so"))]


def test_without_a_compiler_the_wheel_is_for_every_machine(sources: Path, tmp_path: Path) -> None:
    shutil.copytree(sources, tmp_path / "sources", ignore=shutil.ignore_patterns("build"))
    wheel = build(sys.executable, tmp_path / "sources", tmp_path / "wheel", compiler="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(about).decode().splitlines()
    assert "precision_tool/__init__.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_an_installation(wheel: Path, tmp_path: Path) -> None:
    programs = install(sys.executable, wheel, tmp_path / "venv")
    empty = tmp_path / "empty"
    empty.mkdir()
    tool = programs / "precision-tool"
    assert run(tool, "-h", cwd=empty).stdout.startswith("usage: precision-tool")
    assert run(tool, "--version", cwd=empty).stdout == f"precision-tool {__version__}\n"
    assert {"numpy", "ml_dtypes", "rich"} <= {name.replace("-", "_") for name in installed(programs)}
    assert not {"protobuf", "pytest"} & installed(programs)
    paths = "import precision_tool.tf_config as c, os; print(os.path.isfile(c.FUSION_OFF_FILE))"
    assert run(programs / "python", "-c", paths, cwd=empty).stdout == "True\n"
    assert list(empty.iterdir()) == []


def test_an_installation_on_python_3_7_is_the_training_side(wheel: Path, python37: str, tmp_path: Path) -> None:
    programs = install(python37, wheel, tmp_path / "venv")
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

    assert other.name == wheel.name
    assert package_files(other) == package_files(wheel)
