"""The page of systems: what it says bertsmith has exists in the code, and what exists is not called missing."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import bertsmith as bs
from bertsmith.models.family import FAMILIES, get_family
from documented_names import commands, exists

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "systems.md"
PRESENT = {"yes", "in part", "replaced"}
ABSENT = {"out of scope", "planned"}
TABLES = {"system", "method", "data", "tool"}
"""The headings of first columns."""


class Row(NamedTuple):
    table: str
    name: str
    year: str
    status: str
    description: str


def read_rows(page: str) -> list[Row]:
    """Return the rows of all tables: of the models with a year."""
    rows, table = [], ""
    for line in page.splitlines():
        if not line.startswith("|"):
            table = ""
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not table:
            table = cells[0]
        elif not cells[0].startswith("---"):
            year = cells.pop(1) if table == "system" else ""
            name, status, description = cells
            rows.append(Row(table, name, year, status, description))
    return rows


def normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("s")


@cache
def implementations() -> dict[str, str]:
    """Return presets, families, functions, commands, and modules by name and by part: ngram of train_ngram."""
    files = (ROOT / "src" / "bertsmith").rglob("*.py")
    names = [*bs.presets(), *FAMILIES, *bs.__all__, *commands(), *(file.stem for file in files)]
    parts = {normalized(part): name for name in names for part in re.split(r"[-_ ]", name)}
    return {**parts, **{normalized(name): name for name in names}}


def faults(page: str) -> list[str]:
    """Return what is wrong with the statuses of a page, a sentence each."""
    result = []
    for row in read_rows(page):
        spans = re.findall(r"`([^`]+)`", row.description)
        result += [f"{row.name}: there is no `{code}`" for code in spans if not exists(code)]
        if row.status in PRESENT and not spans:
            result.append(f"{row.name}: is {row.status}, but names nothing that exists")
        if row.status in ABSENT:
            names = [normalized(name) for name in re.split(",| and ", row.name)]
            there = [implementations()[name] for name in names if name in implementations()]
            result += [f"{row.name}: is {row.status}, but there is {name}" for name in there]
        if row.status not in PRESENT | ABSENT:
            result.append(f"{row.name}: {row.status!r} is no status")
    return result


def test_each_status_is_that_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = read_rows(page)
    assert {row.table for row in rows} == TABLES
    assert len(rows) > 45
    assert faults(page) == []


@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family_is_listed(model_type: str) -> None:
    """A row that says yes names a preset of each family."""
    text = " ".join(row.description for row in read_rows(PAGE.read_text("utf-8")) if row.status == "yes")
    assert set(get_family(model_type).presets) & set(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize(
    ("status", "description", "fault"),
    [
        ("GPT | 2018 | planned", "causal masked encoders are available", "GPT: is planned, but there is"),
        ("n-grams | 1948 | planned", "", "n-grams: is planned, but there is"),
        (
            "word2vec, fastText | 2013 | out of scope",
            "",
            "word2vec, fastText: is out of scope, but there is word2vec",
        ),
        ("GPT-3 | 2020 | yes", "its size", "GPT-3: is yes, but names nothing that exists"),
        ("XLNet | 2019 | yes", "`xlnet-mini`", "XLNet: there is no `xlnet-mini`"),
        ("XLNet | 2019 | yes", "`finetune permute`", "XLNet: there is no `finetune permute`"),
        ("XLNet | 2019 | yes", "`predict --permute`", "XLNet: there is no `predict --permute`"),
        ("XLNet | 2019 | yes", "`model.norm=batch`", "XLNet: there is no `model.norm=batch`"),
        ("XLNet | 2019 | yes", "`model.permutations`", "XLNet: there is no `model.permutations`"),
        ("XLNet | 2019 | yes", "`Model.permute`", "XLNet: there is no `Model.permute`"),
        ("XLNet | 2019 | yes", "`examples/xlnet.py`", "XLNet: there is no `examples/xlnet.py`"),
        ("XLNet | 2019 | soon", "", "XLNet: 'soon' is no status"),
    ],
)
def test_a_status_that_is_not_that_of_the_code_is_a_fault(status: str, description: str, fault: str) -> None:
    page = f"| system | year | status | in bertsmith |\n|---|---|---|---|\n| {status} | {description} |\n"
    (only,) = faults(page)
    assert only.startswith(fault)
