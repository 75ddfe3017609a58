"""Test pages in general: escaping, plots, and color contrast."""

from __future__ import annotations

import importlib.resources
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.reports import plots
from bertsmith.reports.page import render, sentence


def test_a_missing_template_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("corpus.html")


def test_lines_do_not_break_before_units_or_inside_options() -> None:
    assert sentence("at 12.3 % of 2 MB: <b> or --on-error skip; 3 minutes") == (
        'at 12.3\u00a0% of 2\u00a0MB: &lt;b&gt; or <span class="option">--on-error</span> skip; 3 minutes'
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_colors_have_enough_contrast(scheme: str) -> None:
    """Text has at least 4.5 to 1 (WCAG 2.2, 1.4.3), graphics at least 3 to 1 (1.4.11)."""
    style = (
        importlib.resources.files("bertsmith.reports").joinpath("templates", "base.html").read_text("utf-8")
    )
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colors = dict(re.findall(r"--([\w-]+): (#\w{6})", {"light": light, "dark": dark}[scheme]))
    assert set(dict(re.findall(r"--([\w-]+): (#\w{6})", light))) == set(colors)
    for name in ("ink", "soft", "bad", "warn", "note"):
        assert contrast(colors[name], colors["paper"]) >= 4.5, name
    for name in ("bar", "part-1", "lost"):
        assert contrast(colors[name], colors["paper"]) >= 3, name
    parts = [colors[f"part-{i}"] for i in range(1, 5)]
    assert all(contrast(a, b) > 1.35 for a, b in pairwise(parts))  # a gap separates them, too


def contrast(a: str, b: str) -> float:
    def luminance(color: str) -> float:
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_a_plot_is_svg_in_the_colors_of_the_page() -> None:
    text = plots.to_svg(plots.histogram([1, 2, 3], [1, 2], "a<b & more", "texts"), 'it "says" <b>')
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == 'it "says" <b>'
    assert root.attrib["role"] == "img"
    assert "a<b & more" in "".join(root.itertext())
    assert {"currentColor", "var(--bar)", "var(--line)"} <= set(
        re.findall(r"(?:fill|stroke): ([^;\"]+)", text)
    )
    assert not re.search("(?:fill|stroke): #(?:1c1f23|3b7fc0|d9dde2)", text)
    assert "<metadata" not in text


def test_the_text_of_a_plot_has_one_size() -> None:
    """A plot is as wide as a phone: 11 points are about 11 pixels there, and 13 on a screen."""
    text = plots.to_svg(plots.histogram([1, 2, 3], [1, 2], "x", "y"), "z")
    assert set(re.findall(r"font(?:-size)?: ([\d.]+)px", text)) == {"11"}
    width = float(str(ElementTree.fromstring(text).attrib["viewBox"]).split()[2])
    assert width == pytest.approx(340)


def test_the_same_numbers_give_the_same_picture() -> None:
    a, b = (plots.to_svg(plots.histogram([1, 10, 100], [3, 4], "x", "y"), "z") for _ in range(2))
    assert a == b


def test_a_histogram_has_a_bar_for_each_count() -> None:
    figure = plots.histogram([1, 2, 4, 400], [5, 0, 7], "x", "y")
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [5, 0, 7]
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize("edges", [[37, 38], [1, 2, 3], [3, 4, 5, 6]])
def test_few_bars_do_not_fill_the_plot(edges: list[int]) -> None:
    figure = plots.histogram(edges, [1] * (len(edges) - 1), "x", "y")
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert all(bar.get_width() <= (high - low) / 8 for bar in axes.patches)
    assert all(low < bar.get_x() and bar.get_x() + bar.get_width() < high for bar in axes.patches)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 10**7), min_size=2, max_size=42, unique=True).map(sorted), st.integers(0, 10**9)
)
def test_ticks_of_a_histogram_are_few_and_distinct(edges: list[int], count: int) -> None:
    figure = plots.histogram(edges, [count] * (len(edges) - 1), "x", "y")
    (axes,) = figure.axes
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        labels = [label.get_text() for tick, label in ticks if low <= tick <= high]
        assert 1 <= len(labels) <= 7
        assert len(set(labels)) == len(labels)
        assert not any("e" in label for label in labels)
        assert not axis.get_minorticklocs().size
