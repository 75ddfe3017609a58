"""Tables on terminals of 40, 80, and 120 columns lose no text, and a confusion matrix stays readable."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from bertsmith import console

LABELS = [
    "anger",
    "fear",
    "joy",
    "sadness",
    "love",
    "surprise",
    "admiration",
    "annoyance",
    "approval",
    "caring",
]


@pytest.fixture(params=[40, 80, 120])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    width: int = request.param
    monkeypatch.setenv("COLUMNS", str(width))
    return width


def render(title: str, heads: list[str], rows: list[list[object]]) -> str:
    return console.format_table(title, heads, rows)


def words(text: str) -> list[str]:
    return re.findall(r"[\w.%-]+", text)


@pytest.mark.parametrize(
    "rows",
    [
        [["error", ("12 lines are not UTF-8", "→ run with --encoding cp1252"), ("12", "3.00 %"), "name.txt:1234"]],
        [["日本語の標題", "文字" * 30, "1", "a.txt:1"], ["note", "x " * 60, "22", "b.txt:2"]],
        [["", "one", "", ""]],
    ],
)  # fmt: skip
def test_a_table_fits_the_terminal_and_contains_every_word(columns: int, rows: list[list[object]]) -> None:
    out = render("findings", ["", "what, and what to do", "number", "first"], rows)
    assert max(map(cell_len, out.splitlines())) <= columns
    text = re.sub(r"[\s│]", "", out)
    for row in rows:
        for cell in row:
            for word in words(" ".join(cell) if isinstance(cell, tuple) else str(cell)):
                if len(word) <= 12:
                    assert word in text
    assert not re.search(
        r"│ \w{1,2} +│\n.*│ \w{1,2} +│\n.*│ \w{1,2} +│", out
    )  # no column of one or two characters


@pytest.mark.parametrize("labels", [2, 3, 6, 10])
def test_a_confusion_matrix_is_readable(columns: int, labels: int) -> None:
    names = LABELS[:labels]
    rows: list[list[object]] = [
        [truth, *(f"{100 * i + j:,}" for j in range(labels))] for i, truth in enumerate(names)
    ]
    out = render("", ["truth, down; prediction, across", *names], rows)
    assert max(map(cell_len, out.splitlines())) <= columns
    for name in names:
        assert name in out
    if f"{100 * (labels - 1)}" in out and "times" in out:  # a list of the largest off the diagonal
        cells = [
            (a, b, int(n.replace(",", ""))) for a, b, n in re.findall(r"│ (\w+) +│ (\w+) +│ +([\d,]+) │", out)
        ]
        assert cells[0] == (names[-1], names[-2], 100 * (labels - 1) + labels - 2)
        assert [n for _, _, n in cells] == sorted((n for _, _, n in cells), reverse=True)
        assert all(a != b for a, b, _ in cells)
        num_omitted = labels * (labels - 1) - len(cells)
        assert (f"; {num_omitted:,} more with --json" in out.replace("\n", " ")) == bool(num_omitted)
    else:
        for i in range(labels):
            line = next(line for line in out.splitlines() if re.match(rf"│ {names[i]}\b", line))
            assert [int(n) for n in line.split("│")[2:-1]] == [100 * i + j for j in range(labels)]
