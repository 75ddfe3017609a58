"""Test charts of curves in a terminal."""

from __future__ import annotations

import pytest

from bertsmith.reports.curves import draw_chart


def rows(curves: dict[str, dict[int, float]], *, colored: bool = False, width: int = 30) -> list[str]:
    text = draw_chart("loss", curves, ["a", "b"], width, 8, colored=colored)
    return text.plain.split("\n")


def test_a_falling_curve_falls_from_the_first_to_the_last_column() -> None:
    title, *plot, axis = rows({"a": {1: 4.0, 101: 0.5}})
    assert title.strip() == "loss"
    assert [line[:9].strip() for line in plot] == ["4", "", "", "", "", "0.5"]
    columns = [line[9:].index("*") for line in plot]
    assert columns == sorted(columns)
    assert (plot[0][9], plot[-1][29]) == ("*", "*")
    assert axis.split() == ["1", "update", "101"]


def test_each_run_has_its_character_and_its_range_of_updates() -> None:
    _, *plot, _ = rows({"a": {0: 1.0, 10: 1.0}, "b": {10: 2.0, 20: 2.0}})
    assert set(plot[0][9:20].strip()) <= {"+"}
    assert plot[0][9] == " "
    assert plot[0][29] == "+"
    assert plot[-1][9] == "*"
    assert plot[-1].rstrip().endswith("*")
    assert "*" not in plot[-1][21:]


@pytest.mark.parametrize("colored", [True, False])
@pytest.mark.parametrize("width", [14, 30, 120])
def test_charts_have_their_size(colored: bool, width: int) -> None:
    many = {step: float(step % 7) for step in range(5000)}
    for curves in ({"a": many}, {"a": {3: 1.0}}, {"a": {0: 5.0, 1: 5.0}, "b": many}):
        lines = rows(curves, colored=colored, width=width)
        assert len(lines) == 8
        assert all(len(line) <= max(width, 26) for line in lines)
        assert any(line[9:].strip() for line in lines[1:-1])
