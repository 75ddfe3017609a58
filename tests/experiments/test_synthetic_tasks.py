"""Made-up examples: their answers are in the evidence, and nowhere else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertsmith.experiments.synthetic_tasks import write_agreement, write_cloze

LANGUAGES = {"china": "chinese", "france": "french", "spain": "spanish", "japan": "japanese"}


def read_cloze(file: Path) -> list[tuple[list[str], list[str], str]]:
    """Return the words on the left and on the right of each gap, and its tag."""
    rows = []
    for sentence in file.read_text(encoding="utf-8").strip().split("\n\n"):
        words, tags = zip(*(line.split("\t") for line in sentence.split("\n")), strict=True)
        gap = words.index("what")
        assert set(tags[:gap] + tags[gap + 1 :]) == {"O"}
        rows.append((list(words[:gap]), list(words[gap + 1 :]), tags[gap].removeprefix("B-")))
    return rows


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_a_gap_is_decided_by_the_evidence_on_its_side(side: Any, tmp_path: Path) -> None:
    rows = read_cloze(write_cloze(tmp_path / "cloze.tsv", side, 400, 0))
    assert len(rows) == 400
    pairs = Counter[tuple[str, ...]]()
    for left, right, tag in rows:
        countries = [[word for word in part if word in LANGUAGES] for part in (left, right)]
        assert [len(part) for part in countries] == [side != "right", side != "left"]
        if side == "both":
            assert tag == ("same" if countries[0] == countries[1] else "other")
            pairs[(countries[0][0], tag)] += 1
            pairs[(countries[1][0], tag)] += 1
        else:
            assert tag == LANGUAGES[max(countries)[0]]
            pairs[(tag,)] += 1
    assert min(pairs.values()) > 60  # each answer is as frequent, also for each country of one side
    assert len(pairs) == 4


def test_agreement_is_at_its_distance(tmp_path: Path) -> None:
    lines = write_agreement(tmp_path / "a.csv", 7, 50, 0).read_text(encoding="utf-8").splitlines()
    for line in lines[1:]:
        text, label = line.split(",")
        words = text.split()
        assert LANGUAGES[words[4]] == label
        assert len(words) - words.index(".") - 1 == 7 + 4
