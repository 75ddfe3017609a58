"""What fill-mask shows: a text in which a piece of any vocabulary stands as people write it."""

from __future__ import annotations

import pytest

from bertsmith.inference.fill_mask import replace_mask


@pytest.mark.parametrize(
    ("text", "gap", "piece", "expected"),
    [
        ("the [MASK] of", "[MASK]", "capital", "the capital of"),
        ("play [MASK] on", "[MASK]", "##ing", "playing on"),
        ("the<mask> of", "<mask>", " capital", "the capital of"),
        ("the <mask> of", "<mask>", " capital", "the capital of"),
        ("play<mask> on", "<mask>", "ing", "playing on"),
    ],
)
def test_a_piece_is_set_in_as_it_is_written(text: str, gap: str, piece: str, expected: str) -> None:
    start = text.index(gap)
    assert replace_mask(text, start, start + len(gap), piece) == expected
