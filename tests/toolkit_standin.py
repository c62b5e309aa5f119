"""A toolkit as CANN lays it out, whose programs check their arguments and work with our own code, or misbehave."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

#: What a program does wrong; "" nothing.
FAULTS = ("hang", "crash", "half", "nothing", "warn")

_HEAD = """#!{python}
import json, os, subprocess, sys, time
FAULT, CALLS = {fault!r}, {calls!r}
with open(CALLS, "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:], os.environ.get("STANDIN", "")]) + "\\n")
if FAULT == "hang":
    child = subprocess.Popen(["sleep", "600"])
    with open(CALLS + ".pid", "w") as pid:
        pid.write(f"{{os.getpid()}} {{child.pid}}")
    print("still working", flush=True)
    time.sleep(600)
if FAULT == "crash":
    print("E40021: something is wrong with the operator", file=sys.stderr)
    os.abort()
"""

_ATC = (
    _HEAD
    + """
from precision_tool.lib.io.ge_graph_export import export_graph
options = dict(word[2:].split("=", 1) for word in sys.argv[1:])
if set(options) != {{"mode", "om", "json"}} or options["mode"] not in ("1", "5"):
    sys.exit("E10001: wrong arguments")
with open(options["om"], "rb") as file:
    is_om = file.read(4) == b"IMOD"
if is_om != (options["mode"] == "1"):
    sys.exit("E10002: wrong mode for this file")
text = "".join(export_graph(options["om"])[0])
if FAULT == "half":
    text = text[: len(text) // 2]
if FAULT != "nothing":
    with open(options["json"], "w") as file:
        file.write(text)
print("ATC run success")
sys.exit(1 if FAULT == "warn" else 0)
"""
)

_MSACCUCMP = (
    _HEAD
    + """
import precision_tool
from precision_tool.lib.api import CompareOptions

def value(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None

out = value("-out")
assert set(os.listdir(out)) <= {{"graph-f.json", "graph-cf.json"}}, out
if sys.argv[1] == "compare":
    sides = value("-m"), value("-g")
    assert all(map(os.path.isdir, sides)) or all(os.path.isfile(side) and side.endswith(".h5") for side in sides)
    graph, unfused = value("-f"), value("-cf")
    for one in filter(None, (graph, unfused)):
        with open(one) as file:
            json.load(file)
    if FAULT != "nothing":
        path = os.path.join(out, "result_20260101000000.csv")
        (result,) = precision_tool.compare(
            value("-m"), value("-g"), graph=graph, workers=1, options=CompareOptions(compat=True, other_graph=unfused)
        )
        result.write_csv(path)
        if FAULT == "half":
            os.truncate(path, os.path.getsize(path) // 2)
elif sys.argv[1] == "convert":
    assert os.path.isdir(value("-d")), sys.argv
    if FAULT != "nothing":
        precision_tool.run("dc", value("-d"), "-o", out, work=os.path.join(out, "w"))
elif sys.argv[1] == "overflow":
    dump = value("-d")
    assert os.path.isdir(dump) and int(value("-n")) > 0, sys.argv
    # As msaccucmp does: it resolves links, and refuses what it finds.
    names = [os.path.realpath(os.path.join(dump, name)) for name in os.listdir(dump) if name.startswith("Opdebug.")]
    assert not set("".join(names)) & set(" '$"), names
    if FAULT != "nothing":
        with open(os.path.join(out, "overflow_summary_20260101000000.txt"), "w") as file:
            file.write(f"{{len(names)}} overflow ops, {{value('-n')}} shown\\n")
        for name in names:
            with open(os.path.join(out, os.path.basename(name) + ".output.0.json"), "w") as file:
                file.write("{{}}")
else:
    sys.exit("unknown command")
sys.exit(2 if FAULT == "warn" else 0)
"""
)


@dataclass(frozen=True, kw_only=True)
class Standin:
    """Where the pieces of a toolkit lie."""

    root: Path
    atc: Path
    msaccucmp: Path
    calls_file: Path

    @property
    def calls(self) -> list[list[str]]:
        """The programs that were run: name, arguments, and the variable that set_env.sh sets."""
        import json

        if not self.calls_file.exists():
            return []
        return [json.loads(line) for line in self.calls_file.read_text("utf-8").splitlines()]

    @property
    def environment(self) -> dict[str, str]:
        """What tells the tool of it."""
        return {"PRECISION_TOOL_CMD_ROOT_PATH": str(self.root)}


def make_toolkit(root: Path, *, atc: str | None = "", msaccucmp: str | None = "") -> Standin:
    """A toolkit below `root`; `atc` and `msaccucmp` are what the programs do wrong, None for no such program."""
    latest = root / "ascend-toolkit" / "latest"
    places = Standin(
        root=root,
        atc=latest / "bin" / "atc",
        msaccucmp=latest / "tools" / "operator_cmp" / "compare" / "msaccucmp.py",
        calls_file=root / "calls",
    )
    latest.mkdir(parents=True, exist_ok=True)
    (latest / "version.cfg").write_text("# version: 1.0\nruntime_running_version=[7.6.T10:8.0.RC1]\n", "ascii")
    (root / "ascend-toolkit" / "set_env.sh").write_text("export STANDIN='it is set'\n", "ascii")
    for path, fault, text in ((places.atc, atc, _ATC), (places.msaccucmp, msaccucmp, _MSACCUCMP)):
        if fault is None:
            continue
        assert fault in ("", *FAULTS)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(python=sys.executable, fault=fault, calls=str(places.calls_file)), "utf-8")
        path.chmod(0o755)
    return places
