"""Pages and plots: everything escaped, pictures inside, the same bytes each time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import jinja2
import pytest

from bertsmith.reports import plots
from bertsmith.reports.page import number, percent, render


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, ""), (0, "0 %"), (1, "100 %"), (0.5, "50.0 %"), (0.0123, "1.23 %"), (1e-6, "0.0001 %")],
)
def test_shares_are_written_as_per_cent(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_numbers_have_commas() -> None:
    assert (number(1234567), number(1234.5)) == ("1,234,567", "1,234.50")


def test_a_value_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("corpus.html")


def test_a_plot_is_whole_svg_in_the_colour_of_the_page() -> None:
    text = plots.picture(plots.bars(["a<b", "c"], [0.25, 0.75], "share & more", shares=True), 'it "says" <b>')
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == 'it "says" <b>'
    words = "".join(root.itertext())
    assert "a<b" in words
    assert "share & more" in words
    assert "25 %" in words
    assert "currentColor" in text
    assert "<metadata" not in text
    assert "#123457" not in text


def test_the_same_numbers_give_the_same_picture() -> None:
    one, other = (plots.picture(plots.histogram([1, 10, 100], [3, 4], "x", "y"), "z") for _ in range(2))
    assert one == other


def test_a_histogram_draws_a_bar_for_each_count() -> None:
    figure = plots.histogram([1, 2, 4, 400], [5, 0, 7], "x", "y")
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [5, 0, 7]
    assert axes.get_xscale() == "log"
