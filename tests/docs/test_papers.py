"""The pages about the papers: their tests and settings exist, and their formulas are in the pages themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import browser
import documented_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (S\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
ENTRY = re.compile(r"^(\d+)\. (\*.+?)(?=^\d+\. |^## |\Z)", re.MULTILINE | re.DOTALL)
ERRORS = DOCS / "explanation" / "common-errors.md"
PART = r"(?:sections?|tables?|figures?|algorithm) \d|A\.\d"
CITED = re.compile(rf"([A-Z]\w+(?: et al\.| and [A-Z]\w+))(?: (\d{{4}})|, (?:{PART}))?")
RELEASED = re.compile(r"release, `[\w.]+`")
STATE = re.compile(r"done(: .+)?|in part: .+|open: .+")


SCORE = re.compile(r"(?<![\d.,])\d\d\.\d(?![\d.]| million)")
PUBLISHED = re.compile(r"et al\.|\bpublished\b|\bpapers?\b")
SOURCE = re.compile(rf"{PART}|\btables? |\]\(http", re.IGNORECASE)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
PAGES_WITH_FIGURES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "RESULTS.md",
    *(DOCS / "explanation").glob("*.md"),
    *(DOCS / "how-to").glob("*.md"),
    *(DOCS / "tutorials").glob("*.md"),
    *(ROOT / "src" / "bertsmith" / "pretrained").glob("*/README.md"),
]


def functions_of(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def assert_tests_exist(text: str) -> None:
    for file, name in TEST.findall(text):
        assert name in functions_of(file), f"{file} has no {name}"


def is_slow(file: str, name: str) -> bool:
    return any("mark.slow" in ast.unparse(mark) for mark in functions_of(file)[name].decorator_list)


def test_the_checklist_is_complete_and_its_tests_exist() -> None:
    """A state that rests on slow tests, which do not run by default, says so."""
    text = (DOCS / "reference" / "checklist.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert [number for number, *_ in rows] == [f"S{n}" for n in range(1, 109)]
    for number, _, state, tests in rows:
        assert STATE.fullmatch(state), number
        assert TEST.search(tests) or state.startswith("open"), f"{number} is {state} without a test"
    assert_tests_exist(text)
    for number, _, state, tests in rows:
        rests_on_slow = any(is_slow(file, name) for file, name in TEST.findall(tests))
        assert rests_on_slow == ("slow test" in state), number


def faults(page: str) -> list[str]:
    """Return what entries of the page of common errors lack, a phrase each.

    A source is a citation in parentheses, with a year or a part of the paper, or a file of a release. An author
    without a year is cited with one elsewhere on the page.
    """
    result = []
    cited_with_year = {author for author, year in CITED.findall(" ".join(page.split())) if year}
    for number, entry in ENTRY.findall(page):
        claim, right = re.match(r"\*(.+?)\*\s*(.*)", entry, re.DOTALL).groups()  # type: ignore[union-attr]
        before, _, here = " ".join(right.split()).partition("Here: ")
        if len(claim.split()) <= 3 or len(before.split()) <= 5:
            result.append(f"{number}: a statement and what is right")
        sources = " ".join(re.findall(r"\([^()]*\)", before))
        citations = [match for match in CITED.finditer(sources) if match[0] != match[1]]
        if not citations and not RELEASED.search(sources):
            result.append(f"{number}: a source")
        years = {match[1] for match in CITED.finditer(before)} - cited_with_year
        result += [f"{number}: the year of {author}" for author in sorted(years)]
        spans, links = re.findall(r"`([^`]+)`", here), re.findall(r"\]\(([^)]+)\)", here)
        tests = TEST.findall(here)
        settings = [code for code in spans if documented_names.is_setting(code)]
        pages = [link for link in links if (ERRORS.parent / link).exists()]
        if not tests and not settings and not pages:
            result.append(f"{number}: a setting, a test, or a page")
        names = set(spans) - {f"{file}::{name}" for file, name in tests}
        result += [f"{number}: `{name}`" for name in sorted(names) if not documented_names.exists(name)]
        result += [f"{number}: {link}" for link in links if link not in pages]
        result += [f"{number}: {name} in {file}" for file, name in tests if name not in functions_of(file)]
    return result


def test_each_common_error_has_a_source_and_something_here() -> None:
    text = ERRORS.read_text(encoding="utf-8")
    assert [int(number) for number, _ in ENTRY.findall(text)] == list(range(1, 52))
    assert faults(text) == []


SOURCED = "1. *A statement that is not so.* It is this way instead (Devlin et al. 2019, table 5). "


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("1. *A statement that is not so.* It is the other way round. Here: `model.norm`.", "1: a source"),
        ("1. *A statement that is not so.* It is in Devlin et al. 2019. Here: `model.norm`.", "1: a source"),
        (
            "1. *A statement that is not so.* It is this way (release, see there). Here: `model.norm`.",
            "1: a source",
        ),
        (
            "1. *A statement that is not so.* It is this way (Devlin et al., table 5). Here: `model.norm`.",
            "1: the year of Devlin et al.",
        ),
        (SOURCED, "1: a setting, a test, or a page"),
        (f"{SOURCED}Here: `torchrun`.", "1: a setting, a test, or a page"),
        (f"{SOURCED}Here: `model.norm`, `model.norms`.", "1: `model.norms`"),
        (f"{SOURCED}Here: `model.norm`, `bert-giant`.", "1: `bert-giant`"),
        (f"{SOURCED}Here: `model.norm` and [a page](missing.md).", "1: missing.md"),
        (f"{SOURCED}Here: `tests/docs/test_papers.py::test_it`.", "1: test_it in tests/docs/test_papers.py"),
    ],
)
def test_an_entry_without_a_source_or_with_a_wrong_pointer_is_a_fault(page: str, fault: str) -> None:
    assert faults(f"{page}\n") == [fault]


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


def sections_without_source(page: str) -> list[str]:
    """Return the headings of sections with scores and published models, but without the place of a publication."""
    sections = re.split(r"^#+ ", FENCE.sub("", page), flags=re.MULTILINE)
    return [
        section.partition("\n")[0]
        for section in sections
        if SCORE.search(section) and PUBLISHED.search(section) and not SOURCE.search(section)
    ]


def test_published_figures_have_a_source() -> None:
    sourced = "# SST-2\n\nThe published model scores 85.9 (Devlin et al. 2019, table 1).\n"
    assert sections_without_source(sourced) == []
    assert sections_without_source(sourced.replace(", table 1", "")) == ["SST-2"]
    faulty = {
        page.name: sections_without_source(page.read_text(encoding="utf-8")) for page in PAGES_WITH_FIGURES
    }
    assert {name: sections for name, sections in faulty.items() if sections} == {}
