"""Builds what is published: see scripts/release. The source distribution first, and out of it the wheels."""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from auditwheel.libc import Libc
from auditwheel.wheel_abi import analyze_wheel_abi
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

REPO = Path(__file__).resolve().parents[1]
#: The oldest glibc that the kernel in a wheel needs: that of CentOS 7, as old as any that Python 3.7 is used with.
GLIBC = "2_17"
#: Numbers of processors in ELF files.
MACHINES = {"x86_64": 62, "aarch64": 183}
KERNEL = "precision_tool/lib/io/native/kernel.compiled.so"
ASSETS = "precision_tool/lib/view/assets"
#: In the source distribution, from where setup.py puts it into wheels.
SBOM = "precision_tool.cdx.json"
#: Folders that no source distribution takes anything from, whatever lies in them.
LEFT_BEHIND = shutil.ignore_patterns(
    "__pycache__", "*.so", "*.egg-info", "node_modules", "build", "dist", ".venv*", ".*_cache", ".git", ".hypothesis",
    "PKG-INFO", "setup.cfg",
)  # fmt: skip


class ReleaseError(Exception):
    """Something that must not be published."""


def main() -> None:
    """Build twice, compare, and put what was built into its folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", default=" ".join(MACHINES), help="machines that get a compiled kernel")
    parser.add_argument("--out", type=Path, default=REPO / "dist", metavar="DIR", help="default: dist")
    args = parser.parse_args()
    machines = args.machines.split()
    if unknown := set(machines) - set(MACHINES):
        parser.error(f"unknown machines: {' '.join(sorted(unknown))}; known are {' '.join(MACHINES)}")
    for machine in machines:
        if shutil.which(_compiler(machine)) is None:
            name = f"gcc-{machine.replace('_', '-')}-linux-gnu"
            sys.exit(f"release: no {_compiler(machine)}: apt-get install {name}, or leave it out by --machines")
    if changed := uncommitted():
        print(f"release: not as in the commit: {', '.join(changed[:5])}", file=sys.stderr)
    os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory(prefix="another_folder") as second:
            with ThreadPoolExecutor() as pool:
                built = list(pool.map(lambda folder: build(Path(folder), machines), (first, second)))
            compare(*built)
            for path in sorted(built[0].iterdir()):
                check(path)
            publish(built[0], args.out)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.exit(f"release: {error}\n{getattr(error, 'stdout', '')}")
    print((args.out / "SHA256SUMS").read_text("utf-8"), end="")
    print(f"both builds are the same, bit for bit; {args.out} has them")


def build(folder: Path, machines: Sequence[str]) -> Path:
    """Return the folder below `folder` with everything that is published, built there."""
    when = source_date()
    made = folder / "made"
    made.mkdir()
    copied = copy_sources(folder / "copied")
    write_sbom(copied, when)
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder / "sdist", cwd=copied, when=when)
    (archive,) = (folder / "sdist").iterdir()
    with_one_date(archive, made / archive.name, when)
    shutil.copy(copied / SBOM, made / archive.name.replace(".tar.gz", ".cdx.json"))
    for machine in (*machines, ""):
        # The wheels are of the source distribution: nothing that they need is missing in it.
        sources = folder / (machine or "any")
        with tarfile.open(made / archive.name) as opened:
            opened.extractall(sources, filter="data")
        (unpacked,) = sources.iterdir()
        build_wheel(unpacked, made, machine, when)
    return made


def build_wheel(sources: Path, target: Path, machine: str, when: int) -> None:
    """Build the wheel of a machine; of every machine, without the compiled kernel, for ""."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", target]
    compiler = _compiler(machine) if machine else "false"
    if machine:
        command.append(f"--config-setting=--build-option=--plat-name=manylinux_{GLIBC}_{machine}")
    glibc = f"-include {sources / 'scripts' / 'old_glibc.h'}"
    run(
        *command, cwd=sources, when=when, CC=compiler, LDSHARED=f"{compiler} -shared -Wl,-s",
        CFLAGS=f"-g0 {glibc}", LDFLAGS="",
    )  # fmt: skip


def _compiler(machine: str) -> str:
    return f"{machine}-linux-gnu-gcc"


def run(*command: object, cwd: Path, when: int, **variables: str) -> None:
    """Run a command whose output depends on nothing of this environment."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    subprocess.run(
        list(map(str, command)), cwd=cwd, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**kept, "SOURCE_DATE_EPOCH": str(when), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", **variables},
    )  # fmt: skip


# --- the sources ----------------------------------------------------------------------------------------------------


def source_date() -> int:
    """Return the time of everything built: SOURCE_DATE_EPOCH, the commit's, or that of a source distribution."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    if (REPO / ".git").exists():
        return int(subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=REPO, text=True))
    return int((REPO / "pyproject.toml").stat().st_mtime)


def uncommitted() -> list[str]:
    """Return the files that are not as in the commit, whose time everything gets."""
    if not (REPO / ".git").exists():
        return []
    listed = subprocess.check_output(["git", "status", "--porcelain", "-z"], cwd=REPO, text=True)
    return [entry[3:] for entry in listed.split("\0") if entry]


def copy_sources(target: Path) -> Path:
    """Copy what git has, or everything of an unpacked source distribution."""
    if not (REPO / ".git").exists():
        shutil.copytree(REPO, target, ignore=LEFT_BEHIND)
        return target
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.check_output(command, cwd=REPO, text=True).split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (REPO / name).exists():  # not one that was removed, but not in a commit
            shutil.copy(REPO / name, target / name)  # of a link the file
    return target


def with_one_date(archive: Path, target: Path, when: int) -> None:
    """Write an archive again, without what tells who made it and when."""
    with (
        tarfile.open(archive) as old,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", mtime=when, fileobj=file) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, when
            plain.mode = 0o755 if member.isdir() or member.mode & stat.S_IXUSR else 0o644
            new.addfile(plain, old.extractfile(member) if member.isfile() else None)


# --- the bill of materials ------------------------------------------------------------------------------------------


def write_sbom(sources: Path, when: int) -> None:
    """Write what the package contains and needs as CycloneDX, and check it against its schema."""
    document = sbom(sources, when)
    written = json.dumps(document, indent=2) + "\n"
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(written):
        raise ReleaseError(f"no CycloneDX: {error}")
    (sources / SBOM).write_text(written, "utf-8")


def sbom(sources: Path, when: int) -> dict[str, object]:
    """Return the bill of materials: the libraries in the report's page, and the packages that are required."""
    project = tomllib.loads((sources / "pyproject.toml").read_text("utf-8"))["project"]
    (version,) = re.findall(r'__version__ = "(.+)"', (sources / "precision_tool/lib/version.py").read_text("utf-8"))
    name = project["name"]
    itself = f"pkg:pypi/{name}@{version}"
    contained = list(page_libraries(sources))
    needed = [package(text) for text in project["dependencies"]]
    have = {one["name"] for one in needed}
    for extra, texts in project["optional-dependencies"].items():
        if extra not in ("test", "release"):
            found = [package(text, extra) for text in texts]
            needed += [one for one in found if one["name"] not in have]
            have |= {one["name"] for one in found}
    components = [*contained, *needed]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{itself}#{when}").urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application", "bom-ref": itself, "name": name, "version": version, "purl": itself,
                "description": project["description"], "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": itself, "dependsOn": sorted(str(one["bom-ref"]) for one in components)},
            *({"ref": str(one["bom-ref"])} for one in components),
        ],
    }  # fmt: skip


def package(requirement: str, extra: str = "") -> dict[str, object]:
    """Return a component for a requirement, which leaves the version open: its bounds are a property."""
    match = re.fullmatch(r"([\w.-]+)([^;]*)(?:;\s*(.*))?", requirement)
    if match is None:
        raise ReleaseError(f"{requirement}: not of the form NAME>=VERSION; CONDITION")
    name, bounds, condition = match.groups()
    properties = {"requirement": bounds.strip(), "condition": condition or "", "extra": extra}
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}"
    return {
        "type": "library", "bom-ref": purl, "name": name, "purl": purl, "scope": "optional" if extra else "required",
        "properties": [{"name": f"precision_tool:{key}", "value": value} for key, value in properties.items() if value],
    }  # fmt: skip


def page_libraries(sources: Path) -> Iterator[dict[str, object]]:
    """Yield the libraries that the script of the report's page is built of, as its licences name them."""
    licences = (sources / ASSETS / "LICENSES.txt").read_text("utf-8")
    locked = json.loads((sources / "scripts/page/package-lock.json").read_text("utf-8"))["packages"]
    for entry in licences.split("-" * 72):
        match = re.match(r"\s*(\S+) (\S+) \(([^)]+)\)\n", entry)
        if match is None:
            raise ReleaseError(f"LICENSES.txt: no name, version and licence: {entry.strip()[:60]}")
        name, version, licence = match.groups()
        place = locked[f"node_modules/{name}"]
        if place["version"] != version:
            raise ReleaseError(f"{name}: {version} in the page, {place['version']} in package-lock.json")
        algorithm, _, digest = place["integrity"].partition("-")
        purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
        yield {
            "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "scope": "required",
            "licenses": [{"license": {"id": licence}}],
            "hashes": [{"alg": f"SHA-{algorithm[3:]}", "content": base64.b64decode(digest).hex()}],
            "properties": [{"name": "precision_tool:contained in", "value": f"{ASSETS}/report.js"}],
        }  # fmt: skip


# --- checks ---------------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compare(first: Path, second: Path) -> None:
    """Raise an error where two builds differ."""
    sums = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.iterdir()}
        for made in (first, second)
    ]
    different = sorted(name for name in {*sums[0], *sums[1]} if sums[0].get(name) != sums[1].get(name))
    if different:
        raise ReleaseError(f"two builds differ in {', '.join(different)}")


def check(path: Path) -> None:
    """Raise an error where a wheel is not what its name says."""
    if path.suffix != ".whl":
        return
    platform = path.stem.split("-")[-1]
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        kernel = archive.read(KERNEL) if KERNEL in names else b""
    if not any(name.endswith(f".dist-info/sboms/{SBOM}") for name in names):
        raise ReleaseError(f"{path.name} has no SBOM")
    if platform == "any":
        if [name for name in names if name.endswith(".so")]:
            raise ReleaseError(f"{path.name} has a compiled kernel")
        return
    machine = platform.removeprefix(f"manylinux_{GLIBC}_")
    if not kernel:
        raise ReleaseError(f"{path.name} has no compiled kernel")
    if struct.unpack_from("<H", kernel, 18)[0] != MACHINES[machine]:
        raise ReleaseError(f"{path.name}: its kernel is of another machine")
    found = analyze_wheel_abi(Libc.GLIBC, None, path, frozenset(), disable_isa_ext_check=True, allow_graft=False)
    needs = re.fullmatch(rf"manylinux_(\d+_\d+)_{machine}", found.overall_policy.name)
    if needs is None or _numbers(needs[1]) > _numbers(GLIBC):
        raise ReleaseError(f"{path.name}: its kernel needs {found.overall_policy.name}")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("_")]


def publish(made: Path, target: Path) -> None:
    """Put everything into a folder that is there only as a whole."""
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(made.iterdir()))
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    new, old = (target.with_name(f".{target.name}.{suffix}") for suffix in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(made, new)
    (new / "SHA256SUMS").write_text(sums, "utf-8")
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    main()
