"""The profile of a device as a file: beside every verdict, carried to later runs, and merged.

The file comes from anywhere, and is read so: what is odd about it refuses it, with the reason.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import NoReturn

from precision_tool.lib.compare.result_files import find_results, newest_results
from precision_tool.lib.data.workspace import VERDICTS, Workspace
from precision_tool.lib.diagnose.device_profile import CURVE, KEPT, DeviceProfile, TypePrecision, merged, mismatch
from precision_tool.lib.diagnose.error_shape import LIMIT, UNIT
from precision_tool.lib.diagnose.passports import Passport, passport_above, read_passport
from precision_tool.lib.io.files import atomic_text, exists, is_folder, list_folder, read_text
from precision_tool.lib.messages.errors import (
    DataNotFoundError,
    FormatError,
    PrecisionToolError,
    UsageError,
    shown,
    shown_name,
)
from precision_tool.lib.model.documents import from_document, to_document
from precision_tool.lib.model.table import Row

#: To be raised with every change of what is kept; files of other versions are refused.
FORMAT, VERSION = "precision_tool profile", 1
_PREFIX = "profile_"
#: A profile of a thousand types takes a megabyte.
_MAX_BYTES = 8 << 20
#: Types, ops of a type, runs, settings, and characters of a text at most.
_MAX_TYPES, _MAX_COUNT, _MAX_RUNS, _MAX_MODES, _MAX_CHARACTERS = 4096, 1 << 40, 1 << 20, 64, 4096

#: What of a run's passport chooses the kernels, and so their precision: options of the NPU, ...
_SWITCHES = (
    "precision_mode", "precision_mode_v2", "op_precision_mode", "op_select_implmode", "optypelist_for_implmode",
    "enable_reduce_precision", "customize_dtypes", "modify_mixlist", "jit_compile",
)  # fmt: skip
#: ... and versions.
_VERSIONS = ("cann",)
#: The variable that switches HF32 where the script does not, and its values.
_HF32, _IS_ON = "ENABLE_HF32_EXECUTION", {"1": "on", "0": "off"}
OVERFLOW, SATURATES, KEEPS_INF = "overflow", "saturate", "inf_nan"


# --- what device it is ------------------------------------------------------------------------------------------------


def identity_of(npu: str, rows: Iterable[Row] = ()) -> DeviceProfile:
    """Return an empty profile of the device of a run, with its mode.

    Parameters
    ----------
    npu : str
        Folder of the run's dump files; its passport lies in a folder above.
    rows : iterable of Row
        The comparison: what was put out where the benchmark is beyond the range tells whether the device saturates.
    """
    profile = DeviceProfile()
    with suppress(PrecisionToolError):  # a damaged passport is a note of the comparison
        path = passport_above(npu)
        if path is not None:
            profile = _of_passport(read_passport(path))
    overflow = _overflow_mode(rows)
    return replace(profile, mode={**profile.mode, OVERFLOW: overflow}) if overflow else profile


def _of_passport(passport: Passport) -> DeviceProfile:
    chip = passport.versions.get("chip", "").rpartition(" x")[0]
    mode = {name: passport.switches[name] for name in _SWITCHES if name in passport.switches}
    mode |= {name: passport.versions[name] for name in _VERSIONS if name in passport.versions}
    variable = passport.environment.get(_HF32, "")
    hf32 = passport.switches.get("allow_hf32", _IS_ON.get(variable, variable))
    if hf32:
        mode["allow_hf32"] = hf32
    return DeviceProfile(device=passport.environment.get("SOC_VERSION", chip), mode=mode)


def _overflow_mode(rows: Iterable[Row]) -> str:
    """Return what the device puts out beyond a type's range; "" where it never got there.

    A mask may hold infinities and largest numbers: only where the benchmark's numbers are beyond the range does the
    NPU's output tell.
    """
    mode = ""
    for row in rows:
        npu, golden = row.npu, row.golden
        dtype = row.npu_dtype or (row.pair.npu.dtype if row.pair.npu is not None else "")
        limit = LIMIT.get(dtype)
        if npu is None or golden is None or limit is None or not row.slot.startswith("output") or golden.inf_count:
            continue
        if not max(golden.maximum, -golden.minimum) > limit:
            continue
        if npu.inf_count:
            return KEEPS_INF
        if max(npu.maximum, -npu.minimum) == limit:
            mode = SATURATES
    return mode


def check_fits(profile: DeviceProfile, run: DeviceProfile) -> None:
    """Raise UsageError for a profile of another device or mode than the run's, or than another profile's."""
    differs = mismatch(profile, run)
    if differs is None:
        return
    name, theirs, ours = differs
    where = {"path": profile.path, "name": name, "theirs": shown_name(theirs)}
    if run.path:
        raise UsageError("diagnose_profile.of_two", other=run.path, ours=shown_name(ours), **where)
    raise UsageError("diagnose_profile.of_another", ours=shown_name(ours), **where)


def unknown(profile: DeviceProfile, run: DeviceProfile) -> tuple[str, ...]:
    """Return what a profile says of its device and mode that a run does not, and the reverse, by name."""
    names = ["device"] if not (profile.device and run.device) else []
    return (*names, *sorted((profile.mode.keys() ^ run.mode.keys()) - {OVERFLOW}))


def merge(profiles: Sequence[DeviceProfile]) -> DeviceProfile:
    """Return the profile of all runs. UsageError where two are of different devices or modes."""
    for number, profile in enumerate(profiles):
        for other in profiles[:number]:
            check_fits(profile, other)
    return merged(profiles)


# --- writing ----------------------------------------------------------------------------------------------------------


def profile_path(result: str) -> str:
    """Return where the profile of a result's run is kept."""
    folder, name = posixpath.split(result)
    return posixpath.join(folder, f"{_PREFIX}{posixpath.splitext(name)[0]}.json")


def beside_verdict(verdict: str) -> str:
    """Return where the profile of a verdict that has no result is kept, by the verdict's file."""
    folder, name = posixpath.split(verdict)
    return posixpath.join(folder, f"{_PREFIX}{name.partition('_')[2]}")


def write_profile(profile: DeviceProfile, path: str) -> None:
    """Write a profile. OutputError if that fails; then nothing of it is left."""
    document = {"format": FORMAT, "version": VERSION, **to_document(profile)}
    with atomic_text(path) as file:
        file.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


# --- reading ----------------------------------------------------------------------------------------------------------


def read_profile(path: str) -> DeviceProfile:
    """Return the profile in a file.

    Parameters
    ----------
    path : str
        A file that `write_profile` wrote, of any machine.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    FormatError
        It is damaged, of another version, or holds what no profile can; says where.
    """
    return parse_profile(read_text(path, _MAX_BYTES), path)


def parse_profile(text: str, path: str) -> DeviceProfile:
    """Return the profile in a text. FormatError as above."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormatError.of(path, "diagnose_profile.damaged", reason=_short(error)) from None
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise FormatError.of(path, "diagnose_profile.not_profile")
    version = document.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise FormatError.of(path, "diagnose_profile.version", version=_short(version), expected=VERSION)
    try:
        profile = from_document(DeviceProfile, document)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError.of(path, "diagnose_profile.damaged", reason=_short(error)) from None
    _Checks(path).check(profile)
    return replace(profile, path=path)


def _short(value: object) -> str:
    """Return a reason, or a number of any length, as a message shows it."""
    if isinstance(value, int) and abs(value) > _MAX_COUNT:
        return "…"
    return shown(str(value)) if not isinstance(value, Exception) else shown_name(str(value))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


class _Checks:
    """Checks of what stands in a profile; FormatError names the place."""

    def __init__(self, path: str) -> None:
        self._path = path

    def check(self, profile: DeviceProfile) -> None:
        """Raise FormatError for a profile that no run has."""
        self.count(profile.runs, "runs", _MAX_RUNS)
        self.at_most(len(profile.types), "types", _MAX_TYPES)
        self.at_most(len(profile.mode), "mode", _MAX_MODES)
        self.at_most(len(profile.flushes), "flushes", len(UNIT))
        for dtype in profile.flushes:
            self.that(dtype in UNIT, "flushes", "no_dtype")
        self.text(profile.device, "device")
        for setting in profile.mode.items():
            for part in setting:
                self.text(part, "mode")
        keys = set()
        for number, entry in enumerate(profile.types):
            where = f"types[{number}]"
            self._entry(entry, where)
            self.that((entry.op_type, entry.dtype) not in keys, where, "twice")
            keys.add((entry.op_type, entry.dtype))

    def _entry(self, entry: TypePrecision, where: str) -> None:
        self.text(entry.op_type, f"{where}.op_type")
        self.that(entry.op_type != "", f"{where}.op_type", "empty")
        self.that(entry.dtype in UNIT, f"{where}.dtype", "no_dtype")
        self.that(entry.input_dtype in ("", *UNIT), f"{where}.input_dtype", "no_dtype")
        self.count(entry.ops, f"{where}.ops", _MAX_COUNT)
        self.count(len(entry.imprecisions), f"{where}.imprecisions", KEPT)
        named = {"own": (entry.own,), "rounding": (entry.rounding,), "imprecisions": entry.imprecisions}
        for name, values in named.items():
            self.that(all(isfinite(value) and value >= 0 for value in values), f"{where}.{name}", "not_number")
        is_sorted = entry.imprecisions == tuple(sorted(entry.imprecisions))
        self.that(is_sorted, f"{where}.imprecisions", "not_sorted")
        self.at_most(len(entry.curve), f"{where}.curve", CURVE)
        self.that(all(isfinite(value) for point in entry.curve for value in point), f"{where}.curve", "not_finite")
        points = [value for value, _ in entry.curve]
        self.that(points == sorted(points), f"{where}.curve", "not_sorted")

    def text(self, text: str, where: str) -> None:
        self.that(len(text) <= _MAX_CHARACTERS, where, "too_long", limit=_MAX_CHARACTERS)

    def count(self, value: int, where: str, most: int) -> None:
        self.that(1 <= value <= most, where, "not_count", limit=most)

    def at_most(self, value: int, where: str, most: int) -> None:
        self.that(value <= most, where, "too_many", limit=most)

    def that(self, is_so: bool, where: str, problem: str, limit: int = 0) -> None:
        if not is_so:
            raise FormatError.of(self._path, f"diagnose_profile.{problem}", field=where, limit=limit)


def profiles_at(space: Workspace, path: str | None = None) -> list[DeviceProfile]:
    """Return profiles: of a profile's file, beside a result file or below a folder of results.

    By default those of the newest result, or without results of the newest run that was judged alone. DataNotFoundError
    where there is none.
    """
    if path is None:
        return _newest(space)
    if not exists(path):
        raise DataNotFoundError.of(path, "diagnose_profile.no_result")
    if not is_folder(path) and path.endswith(".json"):
        return [read_profile(path)]
    paths = [profile_path(result) for result in find_results(path)]
    profiles = [read_profile(each) for each in paths if exists(each)]
    if not profiles:
        raise DataNotFoundError.of(path, "diagnose_profile.no_profile")
    return profiles


def _newest(space: Workspace) -> list[DeviceProfile]:
    try:
        results = newest_results(space)
    except DataNotFoundError:
        results = []
    paths = [path for path in map(profile_path, results) if exists(path)]
    if not results:
        alone = [path for base in space.judged_dirs() for path in _alone(str(base / VERDICTS))]
        times = [_time_of(path) for path in alone]
        paths = [path for path, time in zip(alone, times, strict=True) if time == max(times)]
    if not paths:
        raise DataNotFoundError.of(results[0] if results else str(space.root), "diagnose_profile.no_profile")
    return [read_profile(path) for path in paths]


def _alone(folder: str) -> Iterator[str]:
    with suppress(PrecisionToolError):
        if is_folder(folder):
            names = (name for name in list_folder(folder) if name.startswith(_PREFIX) and name.endswith(".json"))
            yield from (posixpath.join(folder, name) for name in sorted(names))


def _time_of(path: str) -> str:
    return posixpath.basename(path).rpartition("_")[0]
