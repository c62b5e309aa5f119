"""Reasons why ops were not recomputed, rendered and counted."""

from __future__ import annotations

import posixpath
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from precision_tool.lib.diagnose.stored_verdict import Change, Since
from precision_tool.lib.diagnose.verdict_model import (
    Action,
    Cause,
    NotChecked,
    Proof,
    Step,
    StepText,
    Suspect,
    Tally,
    Verdict,
)
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.finding import reason_kind


def reason_words(reason: Message | str | None) -> str:
    return render(reason) if reason else ""


def reason_counts(tally: Tally) -> list[tuple[str, int]]:
    """Return the reasons why ops were not recomputed, rendered, each with its number of ops; most frequent first."""
    counts: Counter[str] = Counter()
    for reason, count in tally.reasons:
        counts[reason_words(reason)] += count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def kind_counts(tally: Tally) -> dict[str, int]:
    """Return the same by kind, without those that are in words."""
    counts: Counter[str] = Counter()
    for reason, count in tally.reasons:
        kind = reason_kind(reason)
        if kind is not None:
            counts[kind] += count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# --- The words of a verdict: one function for each thing that it says, which terminal, JSON and report render alike ---


#: Confidence from which on a verdict is certain, or likely.
CERTAIN, LIKELY = 0.9, 0.65
#: Share of the ops that must be right for an acquittal of the whole run.
_WHOLE_RUN = 0.8
#: Reasons, names and other faults that are shown.
MAX_SHOWN = 3
#: A factor so near to -1 is a wrong sign.
_NEAR = 1e-3
#: A share of the final deviation below this is not worth a word.
_EXPLAINS = 0.01
#: Where code goes, if not to the arguments that all calls take.
_FILES = {
    Action.KEEP_FUSED_TYPE: "step.file.script",
    Action.KEEP_TYPE: "step.file.script",
    Action.SAME_SEEDS: "step.file.scripts_before_graph",
    Action.MAKE_PASSPORTS: "step.file.scripts",
}


# --- who, and what is wrong -------------------------------------------------------------------------------------------


def culprit(suspect: Suspect, run: int | None = None) -> Message:
    """Return the op, its type, and the run if it is not the folder named."""
    return Message("verdict.culprit", op=suspect.culprit, type=suspect.op_type, run=run or None)


def fault(suspect: Suspect) -> Message:
    """Return the cause and what it means for this suspect."""
    return Message("verdict.fault", cause=cause_name(suspect.cause), what=what_is_wrong(suspect))


def cause_name(cause: str) -> Message:
    return Message(f"cause.{cause}")


def what_is_wrong(suspect: Suspect) -> Message:
    """Return the sentence of a cause."""
    if suspect.proof is Proof.RUNS:
        return Message("cause.what.runs")
    if suspect.cause is Cause.WEIGHTS and suspect.fact("step"):
        return Message("cause.what.weights_at_step", step=suspect.fact("step"))
    if suspect.cause is Cause.CAST and suspect.fact("mistake") in ("truncated", "misrounded"):
        return Message(f"cause.what.{suspect.fact('mistake')}")
    if suspect.cause is Cause.OVERFLOW and suspect.fact("nan_op") == suspect.culprit:
        return Message("cause.what.nan")
    return Message(f"cause.what.{suspect.cause}")


def is_whole(verdict: Verdict) -> bool:
    """Return whether enough ops were found right to acquit the whole run."""
    return bool(verdict.tally.ops) and verdict.tally.right >= _WHOLE_RUN * verdict.tally.ops


def no_fault(verdict: Verdict) -> Message:
    """Return the head of a verdict that accuses nobody."""
    worst = verdict.worst
    if verdict.cause is Cause.LOSS_SCALE and verdict.suspects:
        scale = verdict.suspects[0]
        return Message(
            "verdict.no_fault.loss_scale", op=scale.culprit, factor=scale.fact("factor"),
            benchmark=verdict.has_benchmark,
        )  # fmt: skip
    if verdict.by_figures is not None:
        return verdict.by_figures
    head = Message("verdict.no_fault.all" if is_whole(verdict) else "verdict.no_fault.recomputed")
    if worst is not None and worst.cosine < 1 and is_whole(verdict):
        return Message("verdict.no_fault.rounding", head=head, cosine=worst.cosine, op=worst.op_name)
    if worst is not None and not worst.below:
        return Message("verdict.no_fault.agrees", head=head, cosine=worst.cosine)
    return head


def rounding(verdict: Verdict) -> Message | None:
    """Return how many ops are below the threshold though nothing computes wrong; None if none is."""
    worst = verdict.worst
    if worst is None or not worst.below:
        return None
    return Message("verdict.rounding", below=worst.below, op=worst.grows_from)


# --- what it rests on -------------------------------------------------------------------------------------------------


def confidence(value: float, suspect: Suspect | None = None) -> Message:
    """Return the confidence, and with a suspect what it rests on."""
    return Message(
        "verdict.confidence", percent=round(100 * value), likely=LIKELY <= value < CERTAIN, guess=value < LIKELY,
        proof=None if suspect is None else proof(suspect),
    )  # fmt: skip


def proof(suspect: Suspect) -> Message:
    """Return the sentence on what a suspicion rests on."""
    fact = suspect.fact
    if suspect.proof is Proof.COPIES:
        return _proof_of_copies(suspect)
    if suspect.proof is not Proof.RECOMPUTED:
        return Message(f"verdict.proof.{suspect.proof}")
    if fact("one_of"):
        return Message("verdict.proof.one_of")
    if fact("or_variable"):
        return Message("verdict.proof.or_variable", variable=fact("or_variable"))
    if fact("inputs_not_dumped"):
        return Message("verdict.proof.producers", overwritten=suspect.cause is not Cause.STOMP)
    if fact("benchmark_obeys"):
        return Message("verdict.proof.benchmark")
    return Message("verdict.proof.another" if fact("another_obeys") else "verdict.proof.recomputed")


def _proof_of_copies(suspect: Suspect) -> Message:
    """Return what says which of two copies is the correct one."""
    judge = suspect.fact("told_by")
    if judge == "producer" and suspect.fact("producer_is_right"):
        return Message("verdict.proof.copies_producer")
    if judge == "nobody":
        return Message("verdict.proof.copies_nobody", reader=next(iter(suspect.also), None))
    if judge in ("recomputed", "benchmark", "readers"):
        return Message(f"verdict.proof.copies_{judge}")
    return Message("verdict.proof.copies")


def evidence(suspect: Suspect) -> tuple[Message, ...]:
    """Return the two or three figures behind a suspicion, the weightiest first."""
    return tuple(_evidence(suspect))


def _evidence(suspect: Suspect) -> Iterator[Message]:
    fact = suspect.fact
    if fact("arguments") is not None:
        yield Message("verdict.why.arguments", arguments=tuple(map(_argument, fact("arguments"))))
    if suspect.cause is Cause.ARGUMENTS:
        if fact("distance") is not None:
            yield Message("verdict.why.errors", distance=fact("distance"), inputs=fact("fed"))
    elif fact("own_error") is not None:
        yield Message(
            "verdict.why.recomputed", error=fact("own_error"), rounding=fact("rounding"),
            formula=tuple(dict.fromkeys(map(str, fact("recomputed_as") or ()))),
            producers=bool(fact("inputs_not_dumped")),
        )  # fmt: skip
        yield Message(
            "verdict.why.elements", wrong=fact("wrong_elements"), elements=fact("elements"), output=fact("output"),
            total=fact("elements_in_all"), pattern=pattern_message(suspect.fact),
        )  # fmt: skip
        if fact("variant") is not None:
            name, recorded, fits = fact("variant")
            yield Message("verdict.why.variant", name=name, recorded=recorded, fits=fits)
    elif fact("figures") is not None:
        yield Message("verdict.why.figures", figures=fact("figures"))
    elif fact("overflowed_elements") is not None:
        at_limit, count = fact("at_limit"), fact("overflowed_elements")
        yield Message(
            "verdict.why.overflow", largest=fact("largest"), type=fact("type"), limit=fact("limit"), count=count,
            elements=fact("elements"), at_limit=None if at_limit == count else at_limit,
        )  # fmt: skip
    elif fact("nan_op") == suspect.culprit:
        pass  # the sentence on NaN tells it all
    elif fact("lost") is not None:
        lost = fact("lost")
        is_all = not isinstance(lost, (int, float)) or lost >= 1
        yield Message("verdict.why.lost", wide=fact("from"), narrow=fact("to"), lost=lost, all=is_all)
    elif fact("first_byte") is not None:
        yield Message(
            "verdict.why.bytes", reader=fact("reader"), tensor=fact("held_against") or fact("tensor"),
            first=fact("first_byte"), last=fact("last_byte"), bytes=fact("bytes"), count=fact("different_elements"),
        )  # fmt: skip
    elif fact("not_recomputed") is not None:
        if fact("status") is None and fact("distance") is not None:
            yield Message("verdict.why.errors", distance=fact("distance"), inputs=fact("fed"))
        elif fact("status") is None:
            yield Message("verdict.why.inputs_agree")
        yield Message("verdict.why.not_recomputed", reason=fact("not_recomputed"))
    elif fact("same_inputs"):
        yield Message(
            "verdict.why.runs", output=fact("output"), distance=fact("distance"), count=fact("different_elements"),
            elements=fact("elements"),
        )  # fmt: skip
    elif fact("distance") is not None:
        is_reordered = bool(fact("reordered"))
        yield Message(
            "verdict.why.distance", distance=fact("distance"), count=fact("different_elements"),
            elements=fact("elements") or None, reordered=is_reordered,
            factor=None if is_reordered else fact("factor"), passport=bool(fact("passport")),
        )  # fmt: skip
    if fact("nan_op") is not None:
        yield Message(
            "verdict.why.nan", op=None if fact("nan_op") == suspect.culprit else fact("nan_op"),
            count=fact("nan_elements"), elements=fact("nan_of"), source=fact("infinities_of"),
        )  # fmt: skip
    if fact("truncating_ops") is not None:
        yield Message(
            "verdict.why.truncating", count=fact("truncating_ops"), type=suspect.op_type, wide=fact("from"),
            narrow=fact("to"), others=bool(fact("others_round")),
        )  # fmt: skip
    yield from _of_other_runs(suspect)
    if fact("status") is not None:
        yield Message("verdict.why.status", status=fact("status"), file=posixpath.basename(str(fact("status_file"))))
    yield from _of_proof(suspect)


def _of_proof(suspect: Suspect) -> Iterator[Message]:
    """Yield what mending a culprit does, as `ac --prove` has it."""
    fact = suspect.fact
    for name in ("mended", "mended_together"):
        if fact(name) is not None:
            yield Message(f"verdict.why.{name}", proof=fact(name))
    if fact("explain_nothing") is not None:
        names = tuple(name for name, _ in fact("explain_nothing"))
        yield Message("verdict.why.explain_nothing", names=names, count=len(names))


def _argument(values: Sequence[str]) -> Message:
    name, npu, benchmark = values
    return Message("check.sides.argument", name=name, npu=npu, benchmark=benchmark)


def _of_other_runs(suspect: Suspect) -> Iterator[Message]:
    fact = suspect.fact
    if fact("repeats") is not None:
        run = f"debug_{fact('other_run')}"
        yield Message("verdict.why.repeats" if fact("repeats") else "verdict.why.draws_again", run=run)
    if fact("parts_run") is not None:
        run = f"debug_{fact('parts_run')}"
        if fact("parts_right"):
            yield Message("verdict.why.parts_right", run=run)
        else:
            yield Message("verdict.why.parts_wrong", run=run, op=fact("wrong_part"))


def pattern_message(fact: Callable[[str], Any]) -> Message | None:
    """Return how wrong elements lie in their tensor, by facts of these names; None where nothing stands out."""
    mistake = str(fact("mistake") or "unknown")
    where = None
    if fact("axis") is not None and not fact("steps"):
        where = Message("verdict.pattern.where", index=fact("index"), axis=fact("axis"))
    if mistake == "axes":
        return Message("verdict.pattern.axes", order=tuple(fact("order") or ()))
    if mistake == "shifted":
        return Message("verdict.pattern.shifted", steps=fact("steps") or None, axis=fact("axis"))
    if mistake == "scaled" and _is_sign(fact("factor")):
        return Message("verdict.pattern.sign", where=where)
    if mistake == "scaled":
        return Message("verdict.pattern.scaled", factor=fact("factor"), where=where)
    if mistake == "offset":
        is_everywhere = fact("wrong_elements") == fact("elements")
        return Message("verdict.pattern.offset", offset=fact("offset"), where=where, everywhere=is_everywhere)
    return Message(f"verdict.pattern.{mistake}", where=where) if where or mistake != "unknown" else None


def _is_sign(factor: object) -> bool:
    return isinstance(factor, (int, float)) and abs(factor + 1) < _NEAR


def same_fault(suspect: Suspect) -> Iterator[tuple[Message, Sequence[str]]]:
    """Yield labels and the further culprits of the same fault."""
    if suspect.cause is Cause.STOMP:
        producer = suspect.fact("producer")
        yield Message("verdict.label.producer"), [producer] if producer else []
        yield Message("verdict.label.other_readers"), suspect.fact("other_readers") or []
    elif suspect.cause is Cause.CAST and suspect.fact("own_error") is None:
        yield Message("verdict.label.cast_back"), suspect.also
    else:
        yield Message("verdict.label.also"), suspect.also


def affects(suspect: Suspect) -> Message:
    """Return how many ops are downstream, how many of those below the threshold it explains, and what it does."""
    explained = suspect.fact("explains")
    return Message(
        "verdict.affects", followers=suspect.followers, below=suspect.below or None,
        tensor=suspect.fact("changed_tensor"), change=suspect.fact("changes"),
        explained=explained if explained and explained >= _EXPLAINS else None,
    )  # fmt: skip


def other_fault(suspect: Suspect) -> Message:
    """Return a further fault in one line."""
    first = next(iter(evidence(suspect)), None)
    proof = next(_of_proof(suspect), None)
    return Message(
        "verdict.other", op=suspect.culprit, cause=cause_name(suspect.cause), why=first,
        proof=None if proof == first else proof,
    )  # fmt: skip


def checked(verdict: Verdict) -> Message:
    """Return how many ops were recomputed, and why the others were not."""
    tally = verdict.tally
    reasons = reason_counts(tally)
    return Message(
        "verdict.checked", done=tally.right + tally.wrong + tally.doubtful, ops=tally.ops, right=tally.right,
        imprecise=tally.imprecise or None, doubtful=tally.doubtful or None,
        beyond=sum(map(_is_beyond_type, verdict.suspects)) or None,
        not_recomputed=tally.not_recomputed, more=max(len(reasons) - MAX_SHOWN, 0) or None,
        reasons=tuple(
            Message("verdict.reason_count", reason=reason, count=count) for reason, count in reasons[:MAX_SHOWN]
        ),
    )  # fmt: skip


def _is_beyond_type(suspect: Suspect) -> bool:
    """Return whether an op computes correctly and its type cannot hold the result."""
    return suspect.fact("overflowed_elements") is not None and suspect.fact("own_error") is None


def gap(unseen: NotChecked | str) -> Message | str:
    """Return what a verdict did not check; one in words as it is."""
    if isinstance(unseen, str):
        return unseen
    return Message(
        f"gap.{unseen.lack}", op=unseen.op, others=unseen.count - 1 or None, count=unseen.count, ops=unseen.ops,
        judged=unseen.count - unseen.unknown or None, unknown=unseen.unknown or None,
    )  # fmt: skip


# --- what to do next --------------------------------------------------------------------------------------------------


def plan_step(step: Step | StepText) -> StepText:
    """Return a step with its text, and its command or its lines of code."""
    if isinstance(step, StepText):
        return step
    why = Message(f"step.{step.do}", number=step.number)
    if step.code:
        kind = f"step.file.{step.where}" if step.where else _FILES.get(step.do, "step.file.call")
        file = Message(kind, place=step.place) if step.place else Message(kind)
        return StepText(why=why, line=_lines(step), file=file)
    return StepText(why=why, line=shlex.join(step.command))


def plan_steps(steps: Sequence[Step | StepText]) -> tuple[StepText, ...]:
    return tuple(map(plan_step, steps))


def _lines(step: Step) -> str:
    """Return the code; of a scope also what goes into it, where a name that would break its line is quoted."""
    if not step.ops:
        return step.code
    names = [name if name.isprintable() else repr(name) for name in step.ops]
    lines = render(Message("step.lines_of", names=names))
    return f"{step.code}  # in TensorFlow 2: npu.keep_dtype_scope()\n    ...  # {lines}"


# --- since an earlier verdict -----------------------------------------------------------------------------------------


def since_state(since: Since) -> Message:
    """Return what became of the culprit of an earlier verdict."""
    if since.state == "differs" and since.cause == Cause.INPUT:
        return Message("since.state.differs_input")
    return Message(f"since.state.{since.state}")


def change(each: Change) -> Message:
    kind = "since.changed" if each.is_changed else "since.unchanged"
    return Message(kind, name=each.name, before=each.before, now=each.now)


def since_verdict(since: Since) -> Message:
    """Return whom today's verdict names."""
    if since.next_culprit is None:
        return Message("since.none_left" if since.is_mended else "since.names_nobody")
    if since.next_culprit == since.culprit:
        return Message("since.names_again")
    return Message("since.names", op=since.next_culprit, cause=cause_name(since.next_cause))
