"""The page itself: nothing from outside, everything escaped, built of the sources that are here."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest
from markupsafe import escape
from report_files import hash_of

from precision_tool.lib.model.comparison import NO_GRAPH, STATISTICS_AGREE, STATISTICS_DIFFER
from precision_tool.lib.model.finding import FindingKind
from precision_tool.lib.present import unseen
from precision_tool.lib.present.steps import CALL, FILES, ONE_HF32, WHY
from precision_tool.lib.report.document import Material, document_of
from precision_tool.lib.report.page import asset, page_of
from precision_tool.lib.report.study import told_key
from precision_tool.lib.study.conclusion import Culprit, Ground, Reach
from precision_tool.lib.study.evidence import EvidenceKind
from precision_tool.lib.verdict.judgement import State
from precision_tool.lib.verdict.model import Cause

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "scripts" / "page"


def page(*materials: Material) -> str:
    return page_of(document_of(materials, tool="<tool>", time="<time>"), materials)


def test_the_policy_allows_this_script_and_style_and_nothing_else() -> None:
    text = page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#39;", "'").split(";"))
    scripts = " ".join(f"'sha256-{hash_of(one)}'" for one in re.findall(r"<script>(.*?)</script>", text, re.DOTALL))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert rules == {
        "default-src": "'none'", "script-src": scripts, "style-src": f"'sha256-{hash_of(style)}'",
        "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip


def test_nothing_is_fetched() -> None:
    text = page()
    for found in re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)):
        assert found.startswith("data:")
    assert "url(" not in asset("report.css")
    assert "@import" not in asset("report.css")
    assert "import(" not in asset("report.js")


@pytest.mark.parametrize("title", ["</pre></noscript><script>alert(1)</script>", "</script>", "{{ 7 * 7 }}", "'\"&<>"])
def test_what_stands_in_the_html_is_escaped(title: str) -> None:
    text = page(Material(title=title))
    assert text.count("<script") == 3
    assert text.count("</script") == 3
    assert "<tool>" not in text
    assert f'<pre class="plain">{escape(title)}</pre>' in text


def test_the_built_page_is_of_these_sources() -> None:
    """`scripts/report_page` was run after the last change of scripts/page/."""
    digest = hashlib.sha256()
    sources = sorted((PAGE / "src").rglob("*.*"), key=lambda path: path.relative_to(PAGE).parts)
    for path in [*sources, PAGE / "package-lock.json", PAGE / "build.mjs"]:
        digest.update(f"{path.relative_to(PAGE)}\0".encode())
        digest.update(path.read_bytes())
    assert f"sources {digest.hexdigest()} " in asset("report.js")[:200]


def test_versions_are_locked_and_licences_told() -> None:
    package = json.loads((PAGE / "package.json").read_text("utf-8"))
    lock = json.loads((PAGE / "package-lock.json").read_text("utf-8"))["packages"]
    wanted = package["dependencies"] | package["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    assert all("integrity" in entry for name, entry in lock.items() if name)
    licences = asset("LICENSES.txt")
    for name, version in package["dependencies"].items():
        assert f"{name} {version} (" in licences
    kinds = set(re.findall(r"^\S+ \d\S* \((.*)\)$", licences, re.MULTILINE))
    assert kinds <= {"MIT", "ISC", "BSD-3-Clause"}


def test_both_languages_have_the_same_words() -> None:
    tables = {name: json.loads((PAGE / "src" / "texts" / f"{name}.json").read_text("utf-8")) for name in ("en", "zh")}
    english = tables["en"]
    chinese = {key: text for key, text in tables["zh"].items() if not key.startswith(("step.", "told."))}
    assert set(chinese) == set(english)
    for key, text in english.items():
        # The output number and the like may be left out of a shorter sentence, but never made up.
        assert set(re.findall(r"\{(\w+)\}", chinese[key])) == set(re.findall(r"\{(\w+)\}", text)), key
    for key, text in tables["zh"].items():
        if key.startswith(("step.", "told.")):
            assert set(re.findall(r"\{(\w+)\}", text)) <= set(re.findall(r"\{(\w+)\}", key)), key


def test_every_word_that_the_page_asks_for_is_there() -> None:
    english = json.loads((PAGE / "src" / "texts" / "en.json").read_text("utf-8"))
    asked = {
        key for path in (PAGE / "src").rglob("*.js") for key in re.findall(r"\bt\('([^'$]+)'", path.read_text("utf-8"))
    }
    assert asked - set(english) == set()
    columns = (PAGE / "src" / "tables.js").read_text("utf-8")
    keys = {*re.findall(r"key: '(\w+)'", columns), *re.findall(r"number\('(\w+)'", columns)}
    assert {f"column.{key}" for key in keys} - set(english) == set()


def sentences(module: str, within: Sequence[str]) -> list[str]:
    """The sentences that these functions of a module write, with a `{}` for each value in them."""
    tree = ast.parse((REPO / "precision_tool" / "lib" / module).read_text("utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = []
    for name in within:
        (documentation, *_), body = functions[name].body, ast.walk(functions[name])
        inner = {
            id(part) for node in ast.walk(functions[name]) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        inner |= {id(part) for node in ast.walk(documentation) for part in ast.walk(node)}
        for node in body:
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                found.append(node.value)
    return [one for one in found if " " in one.strip()]


def forms(kind: str) -> list[str]:
    """The sentences of a kind that have their Chinese."""
    chinese = json.loads((PAGE / "src" / "texts" / "zh.json").read_text("utf-8"))
    return [key.partition(".")[2] for key in chinese if key.startswith(f"{kind}.")]


def untranslated(written: Sequence[str], known: Sequence[str]) -> list[str]:
    """The parts between the values of sentences that stand in no known form: sentences are put together of them."""
    parts = {part.strip() for sentence in written for part in sentence.split("{}") if " " in part.strip()}
    texts = [form.replace("(s)", "s") for form in known] + [form.replace("(s)", "") for form in known]
    return sorted(part for part in parts if not any(part in text for text in texts))


def test_every_advice_has_its_chinese() -> None:
    """Of a verdict's plan and of a study's: new ones must be translated."""
    known = forms("step")
    written = [why.replace("{number:,}", "{n}").replace("{number}", "{n}") for why in (*WHY.values(), ONE_HF32)]
    assert [one for one in written if one not in known] == []
    assert {CALL, *FILES.values()} <= set(forms("file"))
    of_study = sentences("present/study.py", ["next_steps", "_other_device", "_look_there"])
    told = [
        one
        for one in of_study
        if one != "its whole verdict" and not one.startswith(("--step", "ni {", "vcs {", "repro {", "ac --all"))
    ]
    assert len(told) > 6
    assert untranslated(told, known) == []


def test_every_gap_of_a_verdict_has_its_chinese() -> None:
    written = sentences("present/unseen.py", sorted({one.__name__ for one in unseen.WORDS.values()}))
    assert len(written) > 8
    assert untranslated(written, forms("told")) == []


def test_why_tensors_were_not_compared_has_its_chinese() -> None:
    """Sentences of rows that a user of any dump meets; what is told of the other kinds of sources is in English."""
    written = [
        *sentences("pairing/match.py", ["_why_missing", "_with_dump_notes", "_match_op"]),
        *sentences("pairing/match_names.py", ["match_by_name", "_match_name"]),
        *sentences("pairing/origins.py", ["of", "_own"]),
        *sentences("pairing/align.py", ["_targets"]),
        *sentences("engine/bundles.py", ["_reason", "_nothing_finite"]),
        NO_GRAPH, STATISTICS_AGREE, STATISTICS_DIFFER,
    ]  # fmt: skip
    assert len(written) > 20
    assert untranslated(written, forms("told")) == []


def test_a_new_sentence_is_missed() -> None:
    """What the two tests above look for is found."""
    assert untranslated(["the moon was full for {}"], forms("told")) == ["the moon was full for"]


def test_what_a_study_and_a_judgement_say_has_words() -> None:
    """Texts whose keys are put together of the values of enums."""
    english = json.loads((PAGE / "src" / "texts" / "en.json").read_text("utf-8"))
    keys = {f"study.ground.{one}" for one in Ground} | {f"study.reach.{one}" for one in Reach}
    keys |= {f"evidence.{one}" for one in EvidenceKind} | {f"state.{one}" for one in State}
    keys |= {f"cause.{one}" for one in Cause} | {f"finding.{one}" for one in FindingKind}
    for reach in Reach:
        for ground in Ground:
            for cause in (*Cause, "communication", "device"):
                culprit = Culprit(
                    step=1, rank=2, op="op", type="", cause=str(cause), ground=ground, reach=reach, ranks=(2,),
                    steps=(1,), confidence=0.5, number=3,
                )  # fmt: skip
                keys.add(f"study.reach.{told_key(culprit)}")
    assert keys - set(english) == set()


def test_the_assets_are_part_of_the_package() -> None:
    names = {path.name for path in files("precision_tool.lib.report.assets").iterdir()}
    assert {"report.js", "report.css", "report.html.j2", "LICENSES.txt"} <= names
