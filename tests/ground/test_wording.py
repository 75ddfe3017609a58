"""Numbers are said as people say them."""

import pytest

from bertsmith.wording import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 texts"), (1, "1 text"), (2, "2 texts"), (12_000, "12,000 texts")]
)
def test_a_noun_is_plural_for_all_numbers_but_one(number: int, said: str) -> None:
    assert counted(number, "text") == said


def test_an_irregular_plural_is_given() -> None:
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
