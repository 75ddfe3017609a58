"""The pages about the papers: their tests and settings exist, and their formulas are in the pages themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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


def test_formulas_are_mathml_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every formula of the page is converted, and the page that a browser gets needs no script for it."""
    pytest.importorskip("latex2mathml")
    pytest.importorskip("myst_parser")
    from sphinx.application import Sphinx

    page = (DOCS / "reference" / "formulas.md").read_text(encoding="utf-8")
    (tmp_path / "index.md").write_text(page, encoding="utf-8")
    monkeypatch.syspath_prepend(str(DOCS))
    options = {"extensions": ["myst_parser", "mathml"], "myst_enable_extensions": ["dollarmath"]}
    out, doctrees = tmp_path / "out", tmp_path / "doctrees"
    overrides = {**options, "html_math_renderer": "mathml"}
    app = Sphinx(str(tmp_path), None, str(out), str(doctrees), "html", overrides, status=None, warning=None)
    app.build()
    html = (out / "index.html").read_text(encoding="utf-8")
    formulas = len(re.findall(r"^```\{math\}", page, re.MULTILINE)) + len(re.findall(r"\$[^$\n]+\$", page))
    assert html.count("<math ") == formulas > 150
    assert not re.search(r"<script[^>]*(mathjax|https?:)", html, re.IGNORECASE)
    assert "\\frac" not in html
