"""The page itself: nothing from outside, everything escaped, built of the sources that are here."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from markupsafe import escape
from report_files import hash_of

from precision_tool.lib.present.steps import CALL, FILES, ONE_HF32, WHY
from precision_tool.lib.report.document import Material, document_of
from precision_tool.lib.report.page import asset, page_of

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
    chinese = {key: text for key, text in tables["zh"].items() if not key.startswith("step.")}
    assert set(chinese) == set(english)
    for key, text in english.items():
        # The output number and the like may be left out of a shorter sentence, but never made up.
        assert set(re.findall(r"\{(\w+)\}", chinese[key])) == set(re.findall(r"\{(\w+)\}", text)), key


def test_every_word_that_the_page_asks_for_is_there() -> None:
    english = json.loads((PAGE / "src" / "texts" / "en.json").read_text("utf-8"))
    asked = {
        key for path in (PAGE / "src").rglob("*.js") for key in re.findall(r"\bt\('([^'$]+)'", path.read_text("utf-8"))
    }
    assert asked - set(english) == set()
    columns = (PAGE / "src" / "tables.js").read_text("utf-8")
    keys = {*re.findall(r"key: '(\w+)'", columns), *re.findall(r"number\('(\w+)'", columns)}
    assert {f"column.{key}" for key in keys} - set(english) == set()


def test_every_advice_of_a_verdict_has_its_chinese() -> None:
    chinese = json.loads((PAGE / "src" / "texts" / "zh.json").read_text("utf-8"))
    sentences = [why.replace("{number:,}", "{n}").replace("{number}", "{n}") for why in (*WHY.values(), ONE_HF32)]
    assert [one for one in sentences if f"step.{one}" not in chinese] == []
    assert [one for one in (CALL, *FILES.values()) if f"file.{one}" not in chinese] == []


def test_the_assets_are_part_of_the_package() -> None:
    names = {path.name for path in files("precision_tool.lib.report.assets").iterdir()}
    assert {"report.js", "report.css", "report.html.j2", "LICENSES.txt"} <= names
