"""The pages about the papers: their tests and settings exist, and their formulas are in the pages themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import browser
from bertsmith.finetuning.settings import settings_type
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tasks.registry import TASKS, get_task

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (S\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
ENTRY = re.compile(r"^(\d+)\. (\*.+?)(?=^\d+\. |^## |\Z)", re.MULTILINE | re.DOTALL)


def assert_tests_exist(text: str) -> None:
    for file, name in TEST.findall(text):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{file} has no {name}"


def test_the_checklist_is_complete_and_its_tests_exist() -> None:
    text = (DOCS / "reference" / "checklist.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert [number for number, *_ in rows] == [f"S{n}" for n in range(1, 109)]
    for number, _, state, tests in rows:
        assert state.startswith(("done", "in part: ", "open: ")), number
        assert TEST.search(tests) or state.startswith("open"), f"{number} is {state} without a test"
    assert_tests_exist(text)


def test_each_common_error_has_a_source_and_something_here() -> None:
    text = (DOCS / "explanation" / "common-errors.md").read_text(encoding="utf-8")
    entries = ENTRY.findall(text)
    assert [int(number) for number, _ in entries] == list(range(1, 52))
    known = {name for task in TASKS for name, _ in settings_type(get_task(task)).names()}
    known |= {name for name, _ in PretrainSettings.names()}
    for number, entry in entries:
        claim, right = re.match(r"\*(.+?)\*\s*(.*)", entry, re.DOTALL).groups()  # type: ignore[union-attr]
        assert len(claim.split()) > 3, number
        before, here, after = " ".join(right.split()).partition("Here: ")
        assert here, f"{number} names nothing here"
        assert len(before.split()) > 5, number
        assert re.search(r"`|\]\(", after), number
        settings = re.findall(r"`((?:model|data|train|start|task|objective|files)\.\w+)`", entry)
        assert not set(settings) - known, number
    assert_tests_exist(text)


@pytest.fixture(scope="module")
def formulas_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the page of formulas with the style sheet of the documentation."""
    pytest.importorskip("latex2mathml")
    pytest.importorskip("myst_parser")
    from sphinx.application import Sphinx

    folder = tmp_path_factory.mktemp("formulas")
    (folder / "index.md").write_text((DOCS / "reference" / "formulas.md").read_text("utf-8"), "utf-8")
    overrides = {
        "extensions": ["myst_parser", "mathml"],
        "myst_enable_extensions": ["dollarmath"],
        "html_math_renderer": "mathml",
        "html_static_path": [str(DOCS / "_static")],
        "html_css_files": ["wide-tables.css"],
    }
    out, doctrees = str(folder / "out"), str(folder / "doctrees")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        Sphinx(str(folder), None, out, doctrees, "html", overrides, status=None, warning=None).build()
    return folder / "out" / "index.html"


def test_formulas_are_mathml_without_network(formulas_page: Path) -> None:
    """Every formula of the page is converted, and the page that a browser gets needs no script for it."""
    page = (DOCS / "reference" / "formulas.md").read_text(encoding="utf-8")
    html = formulas_page.read_text(encoding="utf-8")
    formulas = len(re.findall(r"^```\{math\}", page, re.MULTILINE)) + len(re.findall(r"\$[^$\n]+\$", page))
    assert html.count("<math ") == formulas > 150
    assert not re.search(r"<script[^>]*(mathjax|https?:)", html, re.IGNORECASE)
    assert "\\frac" not in html


def test_a_browser_cuts_no_formula_off(formulas_page: Path) -> None:
    """Each part of a formula is within its box, with a margin; a bar does not touch what it divides."""
    if browser.chromium() is None:
        pytest.skip("Chromium is not installed")
    script = """[...document.querySelectorAll('.formula')].map(box => {
        const outer = box.getBoundingClientRect();
        const inner = [...box.querySelectorAll('math *')].map(e => e.getBoundingClientRect());
        const fractions = [...box.querySelectorAll('mfrac')].map(e => getComputedStyle(e.children[1]));
        return [Math.min(...inner.map(r => r.top)) - outer.top,
            outer.bottom - Math.max(...inner.map(r => r.bottom)), box.clientHeight - box.scrollHeight,
            Math.min(9, ...fractions.map(style => parseFloat(style.paddingTop)))];
    })"""
    with browser.Browser() as window:
        for width in (360, 700, 1400):
            window.open(formulas_page, width)
            rows = window.ask(script)
            assert len(rows) == 14
            for above, below, overflow, padding in rows:
                assert (above > 2, below > 2, overflow, padding > 2) == (True, True, 0, True), width
