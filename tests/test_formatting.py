"""Counts, fractions, times, and sizes are formatted for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.formatting import format_bytes, format_number, format_percent, format_seconds, pluralize


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 texts"), (1, "1 text"), (2, "2 texts"), (12_000, "12,000 texts")]
)
def test_a_noun_is_plural_for_all_counts_but_one(count: int, text: str) -> None:
    assert pluralize(count, "text") == text


def test_numbers_have_commas() -> None:
    numbers = (1234567, 1234.5, None)
    assert [format_number(number, 2) for number in numbers] == ["1,234,567", "1,234.50", "–"]


def test_an_irregular_plural_is_an_argument() -> None:
    assert [pluralize(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "–"), (0, "0 %"), (0.0, "0 %"), (1, "100 %"), (1.0, "100 %"), (0.5, "50.0 %"), (0.0123, "1.23 %"),
        (1e-6, "< 0.01 %"), (0.9994, "99.94 %"), (0.99999, "> 99.99 %"), (0.0004, "0.04 %"),
    ],
)  # fmt: skip
def test_fractions_become_percentages(fraction: float | None, text: str) -> None:
    assert format_percent(fraction) == text


@given(st.floats(0, 1, allow_subnormal=False))  # other tests set this process to flush denormals to 0
def test_only_1_is_100_percent_and_only_0_is_0(fraction: float) -> None:
    text = format_percent(fraction)
    assert (text == "0 %") == (fraction == 0)
    assert (text == "100 %") == (fraction == 1)
    assert "e" not in text
    assert float(text.strip("<> %")) == pytest.approx(100 * fraction, abs=0.051)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.30209, "2.3 s"), (14.185, "14 s"), (0.0251, "25 ms"), (140.2, "140 s"), (1234.5, "1,234 s"), (0, "0.0 s"),
     (0.0996, "100 ms"), (0.9996, "1.0 s"), (0.999, "999 ms"), (0.00001, "< 0.1 ms"),
     (0.0012, "1.2 ms"), (0.00011852562311005628, "0.12 ms"), (0.000996, "1.0 ms"), (9.96, "10 s")],
)  # fmt: skip
def test_short_times_have_at_least_two_digits(value: float, text: str) -> None:
    assert format_seconds(value) == text


@given(st.floats(0.0001, 1e6))
def test_short_times_are_right_to_two_digits(value: float) -> None:
    number, unit = format_seconds(value).split()
    assert float(number.replace(",", "")) * {"s": 1, "ms": 0.001}[unit] == pytest.approx(value, rel=0.051)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1.0 kB"), (37_300, "37 kB"), (999_600, "1.0 MB"),
     (2_345_678, "2.3 MB"), (5e15, "5,000 TB")],
)  # fmt: skip
def test_sizes_have_suitable_units(number: float, text: str) -> None:
    assert format_bytes(number) == text


@given(st.integers(1, 10**15))
def test_sizes_are_right_to_two_digits(number: int) -> None:
    value, unit = format_bytes(number).split()
    scale = {"byte": 1, "bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert float(value.replace(",", "")) * scale == pytest.approx(number, rel=0.051)
