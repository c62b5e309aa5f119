"""The page itself: nothing from outside, everything escaped, built of the sources that are here."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from report_files import hash_of

from precision_tool.lib.diagnose.verdict_model import State
from precision_tool.lib.messages import LANGUAGES, Message, catalogue, render
from precision_tool.lib.model.finding import FindingKind
from precision_tool.lib.view.report_document import Material, document_of
from precision_tool.lib.view.report_page import asset, page_of, plain_verdict

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "scripts" / "page"


def page(*materials: Material) -> str:
    return page_of(document_of(materials, tool="<tool>", time="<time>"), map(plain_verdict, materials))


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
    for language in LANGUAGES:
        digest.update(json.dumps(catalogue_file(language)["page"], ensure_ascii=False, separators=(",", ":")).encode())
    files_of_page = sorted((PAGE / "src").rglob("*.*"), key=lambda path: path.relative_to(PAGE).parts)
    for path in [*files_of_page, PAGE / "package-lock.json", PAGE / "build.mjs"]:
        digest.update(f"{path.relative_to(PAGE)}\0".encode())
        digest.update(path.read_bytes())
    assert f"sources {digest.hexdigest()} " in asset("report.js")[:200], "run scripts/report_page"


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


def english() -> dict[str, str]:
    """The page's own section of the catalogue."""
    texts: dict[str, str] = catalogue_file("en")["page"]
    return texts


def catalogue_file(language: str) -> dict[str, Any]:
    path = REPO / "precision_tool" / "lib" / "messages" / f"{language}.json"
    texts: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return texts


#: Kinds that the page's script puts together of a value: of data, of an enumeration.
BEGINNINGS = re.compile(r"`([a-z_]+\.(?:[a-z_]+\.)?)\$\{")


def sources() -> str:
    """The page's script, and the module that writes what is painted first."""
    view = REPO / "precision_tool" / "lib" / "view"
    return "\n".join(path.read_text("utf-8") for path in [*(PAGE / "src").rglob("*.js"), *view.glob("*.py")])


def test_every_text_that_the_page_names_is_there() -> None:
    named = {
        key for path in (PAGE / "src").rglob("*.js") for key in re.findall(r"\bt\('([^'$]+)'", path.read_text("utf-8"))
    }
    assert named - set(english()) == set()
    columns = (PAGE / "src" / "tables.js").read_text("utf-8")
    keys = {*re.findall(r"key: '(\w+)'", columns), *re.findall(r"number\('(\w+)'", columns)}
    assert {f"column.{key}" for key in keys} - set(english()) == set()


def test_every_text_of_the_page_is_used() -> None:
    text = sources()
    beginnings = tuple(BEGINNINGS.findall(text))
    unused = {
        key for key in english()
        if f"'{key}'" not in text and f'"page.{key}"' not in text and not key.startswith(beginnings)
        and not key.endswith((".about", ".x"))
    }  # fmt: skip
    assert unused == set()


def test_english_needs_no_chinese_font() -> None:
    """Full-width signs are boxes without one; only the Chinese texts have them."""
    own = "".join(path.read_text("utf-8") for path in (PAGE / "src").rglob("*.js"))
    assert re.findall(r"[\uff00-\uffef]", own + "".join(english().values())) == []


def test_values_that_the_page_shows_have_texts() -> None:
    keys = {f"state.{one}" for one in State} | {f"finding.{one}" for one in FindingKind}
    assert keys - set(english()) == set()


@pytest.mark.parametrize("case", json.loads((PAGE / "tests" / "templates.json").read_text("utf-8")))
def test_placeholders_render_as_on_the_page(monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]) -> None:
    """`node --test` checks the same cases of the page's own renderer."""
    monkeypatch.setattr(catalogue, "catalogue", lambda language: {"kind": case["template"], "list.comma": ", "})
    assert render(Message("kind", **case["fields"]), "en") == case["text"]


def test_the_script_of_the_page() -> None:
    """Its own tests: `node --test scripts/page/tests`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js")
    tests = sorted((PAGE / "tests").glob("*.test.js"))
    if not (PAGE / "node_modules" / "@dagrejs").is_dir():
        pytest.skip("no packages of the page: run scripts/report_page")
    run = subprocess.run([node, "--test", *tests], check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout


def test_the_page_uses_no_placeholder_that_its_script_lacks() -> None:
    forms = {
        form.partition(" ")[0]
        for language in LANGUAGES
        for key, text in catalogue_file(language)["page"].items()
        if f'"page.{key}"' not in sources()
        for form in re.findall(r"\{\w+:([^}]*)\}", text)
    }
    assert forms <= {"count", "plural"}


def test_no_text_of_the_tool_is_read_back() -> None:
    """Messages come rendered in both languages: the script looks into none."""
    names = {path.name for path in (PAGE / "src").rglob("*.json")}
    assert names == set()
    assert "RegExp(" not in sources()


def test_the_assets_are_part_of_the_package() -> None:
    names = {path.name for path in files("precision_tool.lib.view.assets").iterdir()}
    assert {"report.js", "report.css", "report.html.j2", "LICENSES.txt"} <= names
