"""The wording of all errors is in one golden file; `python tests/collect_messages.py` writes it."""

from __future__ import annotations

from collect_messages import GOLDEN, golden


def test_messages_equal_the_golden_file() -> None:
    assert golden().splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()
