"""A diagnosis as Python's users have it: the culprit, the cause, the figures behind it, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.diagnose.verdict_model import StepText, Suspect, Verdict
from precision_tool.lib.messages import render
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.view.compare_screen import check_line, check_panel, finding_panel, leaf_title
from precision_tool.lib.view.comparison_result import CompareResult, CompareResults, load_pandas
from precision_tool.lib.view.html import html_of, text_of
from precision_tool.lib.view.named_sides import are_named_dumps, on_named_sides
from precision_tool.lib.view.notebook import command_for, program
from precision_tool.lib.view.tables import Heading
from precision_tool.lib.view.text import plain, safe
from precision_tool.lib.view.verdict_messages import evidence, reason_words
from precision_tool.lib.view.verdict_screen import belongs_to, rendered_verdict, verdict_block, verdict_line

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class DiagnosisResult:
    """What `Session.diagnose` found. A notebook shows it as a card, ``print`` as text.

    Attributes
    ----------
    results : CompareResults
        The comparisons with the benchmark, one for each device, model and step; empty without a benchmark.
    verdicts : tuple of Verdict
        The verdicts on them, or on a dump without a benchmark; those that have something to say.
    checks : tuple of CheckResult
        The checks of the run: overflow, casts, fusion passes.
    notes : tuple of str
        What there is to know of the data folder.
    """

    results: CompareResults
    verdicts: tuple[Verdict, ...]
    checks: tuple[CheckResult, ...]
    notes: tuple[str, ...]
    _diagnoses: tuple[Diagnosis, ...]
    _command: str

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """The faults, the first and surest first: `culprit`, `cause`, `confidence`, `pass_name`, `module`, `source`."""
        return tuple(
            suspect for verdict in self.verdicts if verdict.culprit is not None for suspect in verdict.suspects
        )

    @property
    def culprits(self) -> tuple[str, ...]:
        """The names of the ops, data or variables at fault, the first and surest first; empty if nothing is wrong."""
        return tuple(dict.fromkeys(suspect.culprit for suspect in self.suspects))

    @property
    def causes(self) -> tuple[str, ...]:
        """The cause of the fault of each of `culprits`: ``"fusion"``, ``"kernel"`` and so on (see `Cause`)."""
        causes: dict[str, str] = {}
        for suspect in self.suspects:
            causes.setdefault(suspect.culprit, str(suspect.cause))
        return tuple(causes.values())

    @property
    def culprit(self) -> str | None:
        """The first of `culprits`; None if nothing is wrong."""
        return next(iter(self.culprits), None)

    @property
    def verdict(self) -> Verdict | None:
        """The first verdict that names a culprit, else the first; None if nothing could be recomputed.

        Then the `findings` of `results` name the first op that differs.
        """
        accusing = (verdict for verdict in self.verdicts if verdict.culprit is not None)
        return next(accusing, next(iter(self.verdicts), None))

    @property
    def cause(self) -> str | None:
        """The cause that the first verdict names: ``"none"`` if nothing is wrong; None without a verdict."""
        return None if self.verdict is None else str(self.verdict.cause)

    @property
    def confidence(self) -> float:
        """The confidence of that verdict, 0 to 1; 0 without one."""
        return 0.0 if self.verdict is None else self.verdict.confidence

    @property
    def evidence(self) -> tuple[str, ...]:
        """Sentences with the figures behind the first culprit; empty without one."""
        suspects = self.suspects
        return tuple(map(render, evidence(suspects[0]))) if suspects else ()

    @property
    def next(self) -> tuple[StepText, ...]:
        """Steps to take: `why` in words, and a `line` that runs in a cell, or lines of code for the `file` it names."""
        steps = () if self.verdict is None else self.verdict.next
        return tuple(
            replace(step, line=f"{self._command} {step.line}") if step.line and not step.file else step
            for step in steps
            if isinstance(step, StepText)
        )

    @property
    def ops(self) -> tuple[OpVerdict, ...]:
        """Every op of the run as recomputing it showed: `state`, `own_error`, `rounding` and so on."""
        return tuple(op for _, ops in self._judged() for op in ops)

    def to_pandas(self) -> pd.DataFrame:
        """Return `ops` as a data frame, in the order of execution.

        Returns
        -------
        pandas.DataFrame
            The fields of `OpVerdict` as columns; numbers that are not known are NaN. Of several devices, models or
            steps the first column, `leaf`, tells which.

        Raises
        ------
        UsageError
            pandas is not installed.
        """
        frame = load_pandas().DataFrame([_record(op) for op in self.ops], columns=list(OpVerdict.__dataclass_fields__))
        if len(self._diagnoses) > 1:
            frame.insert(0, "leaf", [leaf for leaf, ops in self._judged() for _ in ops])
        return frame

    def _judged(self) -> Iterator[tuple[str, Sequence[OpVerdict]]]:
        """Yield the ops of each leaf, with its title."""
        for diagnosis in self._diagnoses:
            if diagnosis.stored is not None:
                title = "" if diagnosis.analysis is None else leaf_title(diagnosis.analysis)
                yield title, diagnosis.stored.runs[0].ops

    def __repr__(self) -> str:
        if self.verdict is None:
            return f"<DiagnosisResult: no verdict on {len(self.results)} comparisons>"
        return f"<DiagnosisResult: {self.culprit}, {self.cause}, confidence {self.confidence:.2f}>"

    def __str__(self) -> str:
        return text_of(*self._screen())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict first, then the checks that belong to it."""
        return html_of(*self._screen())

    def _screen(self) -> Iterator[RenderableType]:
        """Yield the first verdict that names a culprit, else the first; the checks; a line for each other verdict."""
        shown = self._shown()
        shown.sort(key=lambda each: each[1] is None or each[1].culprit is None)  # in their order else
        for number, (result, verdict) in enumerate(shown):
            title = "" if result is None or len(shown) == 1 else leaf_title(result.analysis)
            if number and verdict is not None:
                yield Text.assemble((safe(title), "bold"), ": ", verdict_line(verdict))
                continue
            if title:
                yield Heading(plain(title))
            if verdict is not None:
                yield verdict_block(verdict, None if result is None else result.analysis.part, self._command)
            elif result is not None:
                yield from map(finding_panel, result.analysis.findings)
            if not number:
                yield from self._of_checks(verdict)
        for note in self.notes:
            yield plain(note, "yellow")

    def _of_checks(self, verdict: Verdict | None) -> Iterator[RenderableType]:
        for check in self.checks:
            yield check_panel(check) if verdict is not None and belongs_to(verdict, check.name) else check_line(check)

    def _shown(self) -> list[tuple[CompareResult | None, Verdict | None]]:
        """Return each comparison with the verdict on it."""
        results = iter(self.results)
        shown = []
        for diagnosis in self._diagnoses:
            verdict = diagnosis.stored.verdict if diagnosis.stored is not None else None
            result = None if diagnosis.analysis is None else next(results)
            shown.append((result, None if verdict is None or verdict.is_empty else verdict))
        return shown


def diagnosis_result(
    data: DataFolder,
    diagnoses: Sequence[Diagnosis],
    checks: Sequence[CheckResult],
    npu: str | None = None,
    golden: str | None = None,
) -> DiagnosisResult:
    """Return what was found, with the verdicts in words; `npu` and `golden` are the sides that were named."""
    space = data.workspace
    if are_named_dumps(space, npu, golden):
        diagnoses = [_on_named_sides(diagnosis, npu, golden) for diagnosis in diagnoses]
        command = program()
    else:
        command = command_for(space)
    stored = [diagnosis.stored.verdict for diagnosis in diagnoses if diagnosis.stored is not None]
    return DiagnosisResult(
        CompareResults(CompareResult(each.analysis, data=data) for each in diagnoses if each.analysis is not None),
        tuple(rendered_verdict(verdict) for verdict in stored if not verdict.is_empty),
        tuple(checks),
        tuple(map(render, dict.fromkeys(space.notes))),
        tuple(diagnoses),
        command,
    )


def _on_named_sides(diagnosis: Diagnosis, npu: str | None, golden: str | None) -> Diagnosis:
    stored = diagnosis.stored
    if stored is None:
        return diagnosis
    verdict = replace(stored.verdict, next=tuple(on_named_sides(stored.verdict.next, npu, golden)))
    return replace(diagnosis, stored=replace(stored, verdict=verdict))


def _record(op: OpVerdict) -> dict[str, Any]:
    return asdict(op) | {"reason": reason_words(op.reason)}
