"""Where CANN's toolkit is installed: in the places it is known to lie, and by a bounded search where it is not.

Nothing is run and nothing imported: files are looked at by name. What only the search found is remembered in a file,
because walking a big installation takes a while.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.io.files import read_text

#: Environment variables that set_env.sh sets to the toolkit's folder.
VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
#: Below an installation's root, where a toolkit lies.
_BASES = (
    ".", "ascend-toolkit/latest", "latest", "cann", "cann/latest", "ascend-toolkit", "nnae/latest", "toolkit", "tools"
)  # fmt: skip
#: Below a toolkit, where its tools lie.
_ATC = (
    "bin/atc", "compiler/bin/atc", "atc/bin/atc", "x86_64-linux/bin/atc", "aarch64-linux/bin/atc", "latest/bin/atc",
    "latest/compiler/bin/atc",
)  # fmt: skip
_COMPARE_FOLDERS = (
    "tools/operator_cmp/compare", "toolkit/tools/operator_cmp/compare", "tools/operator_cmp/compare/command",
    "operator_cmp/compare", "latest/toolkit/tools/operator_cmp/compare", "latest/tools/operator_cmp/compare",
)  # fmt: skip
_COMPARE_NAMES = ("msaccucmp.py", "msaccucmp.pyc")
_SET_ENV = ("set_env.sh", "../set_env.sh", "bin/setenv.bash", "ascend-toolkit/set_env.sh")
_VERSION_FILES = ("version.cfg", "version.info", "ascend_toolkit_install.info", "compiler/version.info",
                  "toolkit/version.info")  # fmt: skip
_VERSION = re.compile(r"(?im)^\s*(?:runtime_running_)?version\s*=\s*\[?\s*(?:[\w.]+:)?([\w.\-+]+)")
#: The search ends after so many folders, or so deep.
_MOST_FOLDERS, _DEEPEST = 20_000, 8
_MEMORY = "toolkit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """What was found of a toolkit; None for what is missing. `looked_in` are the folders that were looked into."""

    root: str | None = None
    version: str = ""
    atc: str | None = None
    msaccucmp: str | None = None
    set_env: str | None = None
    looked_in: tuple[str, ...] = ()
    searched: bool = False

    def need(self, tool: str) -> str:
        """The path of `atc` or `msaccucmp`; DataNotFoundError says where it was looked for."""
        path: str | None = getattr(self, tool)
        if path is None:
            raise DataNotFoundError(
                f"the toolkit's {tool} was not found in {', '.join(self.looked_in) or 'any folder'}",
                "set CMD_ROOT_PATH in the configuration, or PRECISION_TOOL_CMD_ROOT_PATH in the environment, to where "
                "CANN is installed, or use --engine native, which needs no toolkit; "
                "`toolkit` shows what was looked for",
            )
        return path


def find_toolkit(root: str, environment: Mapping[str, str] | None = None, memories: Sequence[Path] = ()) -> Toolkit:
    """The toolkit below `root` (CMD_ROOT_PATH), or where the environment says it is.

    `memories` are folders in which the result of a search is kept, the first one that exists is written to.
    """
    environment = os.environ if environment is None else environment
    roots = list(dict.fromkeys(filter(None, (root, *(environment.get(name, "") for name in VARIABLES)))))
    there = [os.path.abspath(path) for path in roots if os.path.isdir(path)]
    found = _known(there)
    searched = False
    if there and (found.get("atc") is None or found.get("msaccucmp") is None):
        remembered = _remembered(memories, there)
        more = remembered if remembered is not None else _search(there)
        searched = True
        if remembered is None:
            _remember(memories, there, more)
        for name, path in more.items():
            found.setdefault(name, path)
    home = found.pop("root", None)
    place = home or next((os.path.dirname(path) for path in found.values()), None)
    return Toolkit(
        root=place,
        version=_version(_around(place)) if place else "",
        atc=found.get("atc"),
        msaccucmp=found.get("msaccucmp"),
        set_env=_first_file(_around(place), _SET_ENV) if place else None,
        looked_in=tuple(roots),
        searched=searched,
    )


def _around(place: str) -> list[str]:
    """A folder and those above it in which files about the whole installation lie."""
    above = [place]
    while len(above) < 5 and os.path.dirname(above[-1]) != above[-1]:
        above.append(os.path.dirname(above[-1]))
    return above


def _known(roots: Sequence[str]) -> dict[str, str]:
    """The tools in the known places; `root` is the toolkit that the first of them belongs to."""
    found: dict[str, str] = {}
    compare = [f"{folder}/{name}" for folder in _COMPARE_FOLDERS for name in _COMPARE_NAMES]
    for root in roots:
        for base in _BASES:
            folder = os.path.normpath(os.path.join(root, base))
            if not os.path.isdir(folder):
                continue
            for tool, places in (("atc", _ATC), ("msaccucmp", compare)):
                path = _first_file([folder], places)
                if path is not None and tool not in found:
                    found[tool] = path
                    found.setdefault("root", folder)
    return found


def _first_file(folders: Sequence[str], places: Sequence[str]) -> str | None:
    for folder in folders:
        for place in places:
            path = os.path.normpath(os.path.join(folder, place))
            if os.path.isfile(path):
                return path
    return None


def _search(roots: Sequence[str]) -> dict[str, str]:
    """The tools by name, anywhere below the roots; links are not followed."""
    found: dict[str, str] = {}
    for folder, names in _folders(roots):
        if "atc" in names and os.path.basename(folder) == "bin" and "atc" not in found:
            found["atc"] = os.path.join(folder, "atc")
        script = next((name for name in _COMPARE_NAMES if name in names), None)
        if script is not None and "msaccucmp" not in found:
            found["msaccucmp"] = os.path.join(folder, script)
        if len(found) == 2:
            break
    return found


def _folders(roots: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
    left = _MOST_FOLDERS
    for root in roots:
        depth = root.rstrip(os.sep).count(os.sep)
        for folder, below, names in os.walk(root):
            below[:] = sorted(name for name in below if not name.startswith("."))
            if folder.count(os.sep) - depth >= _DEEPEST:
                below.clear()
            left -= 1
            if left < 0:
                return
            yield folder, set(names)


def _version(folders: Sequence[str]) -> str:
    for folder in folders:
        for name in _VERSION_FILES:
            with suppress(PrecisionToolError):
                match = _VERSION.search(read_text(os.path.join(folder, name))[:4096])
                if match:
                    return match[1]
    return ""


# --- memory of the search ---------------------------------------------------------------------------------------------


def _remembered(memories: Sequence[Path], roots: Sequence[str]) -> dict[str, str] | None:
    """What an earlier search below these roots found, if it still is there; None to search again."""
    for folder in memories:
        with suppress(PrecisionToolError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            kept = json.loads(read_text(str(folder / _MEMORY)))
            found = {str(name): str(path) for name, path in kept["found"].items() if name in ("atc", "msaccucmp")}
            if kept["roots"] == list(roots) and found and all(map(os.path.isfile, found.values())):
                return found
    return None


def _remember(memories: Sequence[Path], roots: Sequence[str], found: Mapping[str, str]) -> None:
    """Keeps what was found; where that cannot be written the next search is as slow as this."""
    for folder in memories:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{_MEMORY}.{os.getpid()}"
            temporary.write_text(json.dumps({"roots": list(roots), "found": dict(found)}), "utf-8")
            os.replace(temporary, folder / _MEMORY)
            return
