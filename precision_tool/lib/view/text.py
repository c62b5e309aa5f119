"""Text from files made fit for a terminal, and numbers and names in their colours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from math import isnan
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path, without_folder
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.messages import Message, parts, render, text
from precision_tool.lib.messages.errors import escaped
from precision_tool.lib.model.comparison import single_value
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.wording import shape_text, without_nan

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.overflow import OverflowOp
    from precision_tool.lib.diagnose.random_errors import RandomOp
    from precision_tool.lib.model.elements import Element
    from precision_tool.lib.model.graph import TensorDesc

#: So many reasons why something cannot be read are shown.
_SHOWN_UNREAD = 3
#: A label and what it stands for; "" continues the label before.
Line = tuple[Message | str, Text]
#: Names and reasons come from other machines: control characters are shown as \\xNN.
safe = escaped


def plain(text: str, style: str = "") -> Text:
    """A name or sentence, free of control characters and of rich's own markup."""
    return Text(safe(text), style=style)


def shown(message: Message | str, style: str = "", fields: Mapping[str, str] | None = None) -> Text:
    """Return a message in a style; `fields` are styles of the fields of its text."""
    text = Text(style=style)
    for part in parts(message):
        text.append(part.text, style=(fields or {}).get(part.field))
    return text


#: Spaces between a number and its unit or counter, and within a shape: a line does not end there.
_HELD = re.compile(r"(?<=[0-9]) (?=%|[\u4e00-\u9fff])|(?<=\u7b2c) (?=[0-9])|(?<=[(, ][0-9],) (?=-?[0-9]+[,)])")
#: What stands for such a space while lines are broken; no text has it.
_HOLD = "\ue000"


def wrapped(text: Text, console: Console, width: int, **options: Any) -> Lines:
    """Return the lines of a text, broken where no number loses what it counts, as far as lines are long enough."""
    held = text.copy()
    held.plain = _HELD.sub(_HOLD, held.plain)
    lines = held.wrap(console, width, **options)
    if any(line.cell_len > width for line in lines):
        return text.wrap(console, width, **options)
    for line in lines:
        line.plain = line.plain.replace(_HOLD, " ")
    return lines


class LabelledLines:
    """Labels and what they stand for, as lines. Prose wraps beside the label; a path is never cut, to be copied."""

    def __init__(self, rows: Sequence[Line]) -> None:
        self.rows = [(render(label), value) for label, value in rows]
        self._width = max((cell_len(label) for label, _ in self.rows), default=0) + 2

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        high = max((value.cell_len for _, value in self.rows), default=0)
        words = [value.cell_len if value.no_wrap else value.__rich_measure__(console, options).minimum
                 for _, value in self.rows]  # fmt: skip
        return Measurement(self._width + max(words, default=0), self._width + high)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for label, value in self.rows:
            # Not folded and not cropped: a word that is longer than a line stands out over its end.
            value.overflow = "ignore"
            for number, line in enumerate(wrapped(value, console, max(options.max_width - self._width, 1))):
                line.rstrip()
                start = set_cell_size("" if number else label, self._width)
                yield Text.assemble((start, "bold"), line, no_wrap=True, overflow="ignore")


def labelled(label: Message | str, lines: Iterable[Text]) -> list[Line]:
    """Return lines of which the first has the label."""
    return [("" if number else label, line) for number, line in enumerate(lines)]


def whole_path(path: str) -> Text:
    """A path to be copied: on one line, however long, even with spaces in it."""
    text = plain(shown_path(path))
    text.no_wrap, text.overflow = True, "ignore"
    return text


def shown_reason(message: Message | str | None) -> str:
    """Return a text whose paths are relative to the working folder; "" for none."""
    return without_folder(render(message))


def without_place(message: Message | str, path: str) -> Message | str:
    """Return a reason without its file, where that stands just before."""
    if isinstance(message, str):
        return message
    if message.kind == "error.advice":
        return Message("error.advice", message=without_place(message.message, path), hint=message.hint)
    is_of_path = message.kind == "error.place" and message.where == path
    reason: Message | str = message.reason if is_of_path else message
    return reason


def unreadable_lines(reasons: Sequence[Message | str]) -> list[Text]:
    """Return the first few reasons why files cannot be read; JSON has all."""
    lines = [
        shown(Message("screen.view.unreadable", reason=shown_reason(why)), "yellow") for why in reasons[:_SHOWN_UNREAD]
    ]
    more = len(reasons) - _SHOWN_UNREAD
    return lines + ([shown(Message("screen.view.unreadable_more", more=more), "yellow")] if more > 0 else [])


def cosine_style(cosine: float | None, agrees: bool | None) -> str:
    """The colour of a cosine: dim where nothing was compared, green, or red."""
    if cosine is None or agrees is None:
        return "dim"
    return "green" if agrees else "bold red"


def values_text(npu: float, golden: float, agrees: bool | None) -> Text:
    """Both sides' values of a single number, of which a cosine says nothing, in the colour of a cosine."""
    return Text(f"{npu:.6g} / {golden:.6g}", style=cosine_style(1.0, agrees))


def row_text(row: Row, agrees: bool | None) -> Text:
    """The cosine of a tensor, or the values of a single number."""
    if row.is_scalar and row.npu is not None and row.golden is not None:
        npu, golden = single_value(row.npu), single_value(row.golden)
        if npu is not None and golden is not None:
            return values_text(npu, golden, agrees)
    return cosine_text(row.cosine, agrees)


def cosine_text(cosine: float | None, agrees: bool | None) -> Text:
    """A cosine with six digits in its colour."""
    if cosine is None:
        return Text("-", style="dim")
    return Text("nan" if isnan(cosine) else f"{cosine:.6f}", style=cosine_style(cosine, agrees))


def always_mark() -> str:
    """Return the mark of a fusion pass that GE never switches off."""
    return text("screen.view.always_on")


def marked_pass(name: str) -> str:
    """Return the name of a fusion pass, marked if no switch file turns it off."""
    return name if is_switchable(name) else f"{name} ({always_mark()})"


def label(name: str) -> str:
    """Return a label that several screens have."""
    return text(f"screen.view.label.{name}")


def leaf_words(leaf: DumpLeaf, separator: str = "  ") -> str:
    """Return device, model and step of a leaf, as far as its path has them: `device 0  model  step 0`."""
    kind = "rank" if leaf.graph else "device"
    device = text(f"screen.view.compare.{kind}", device=leaf.device) if leaf.device else ""
    step = text("screen.view.compare.step", step=leaf.step) if leaf.step else ""
    return separator.join(filter(None, (device, leaf.model_name, step)))


def op_heading(number: int, name: str, op_type: str) -> Text:
    return Text.assemble(f"[{number}] ", (safe(name), "bold"), f" ({safe(op_type)})")


def origin_lines(op: OverflowOp | RandomOp) -> list[Line]:
    """Return the fusion passes of an op, and the ops of the training script that it does the work of."""
    lines: list[Line] = []
    if op.pass_names:
        lines.append((label("pass"), plain(", ".join(op.pass_names))))
    if op.original_names and op.original_names != (op.name,):
        lines.append((label("original"), plain(", ".join(op.original_names))))
    return lines


def desc_text(desc: TensorDesc) -> str:
    """Return a tensor of the graph in short: `float16 NC1HWC0 [1,2,4,4,16]`."""
    return " ".join(filter(None, (desc.dtype, desc.layout, shape_text(desc.shape))))


def byte_size(count: float) -> str:
    """A number of bytes with a unit: 1.5 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def json_text(document: object) -> str:
    """A document as JSON, which has no NaN and Inf: they are written as text, and messages in the language in use."""
    return "".join(json_pieces(document))


#: Tokens in a piece of JSON.
_TOKENS = 5_000


def json_pieces(document: object) -> Iterator[str]:
    """A document as JSON in pieces, as `json_text` writes it; what is `Streamed` in it is made meanwhile."""
    encoder = json.JSONEncoder(indent=1, ensure_ascii=True, default=_json_value)
    tokens = encoder.iterencode(without_nan(document))
    while piece := "".join(islice(tokens, _TOKENS)):
        yield piece


def _json_value(value: object) -> str:
    if isinstance(value, Message):
        return render(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")


def element_json(element: Element) -> dict[str, Any]:
    """Return an element with both errors; JSON has no NaN."""
    relative = None if isnan(element.relative) else element.relative
    return {**asdict(element), "error": element.error, "relative": relative}
