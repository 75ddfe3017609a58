"""One self-contained page from a template beside the code: text escaped, plots inside, no script, no link.

A page extends `base.html`, which brings type, colours (light and dark), and the layout from phone to screen. What
pages have in common is in `parts.html`: tables that scroll inside themselves, bars, bars of several parts,
findings, figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jinja2
from markupsafe import Markup, escape

from bertsmith import console, formatting

_NO_BREAK = "\u00a0"
_UNIT = re.compile(r"(?<=\d) (?=%|(?:bytes?|kB|MB|GB|TB|ms|s|min|h)\b)")
_SCORES = {
    "f1": "F1",
    "ndcg": "nDCG",
    "mrr": "MRR",
    "auc": "AUC",
    "matthews": "Matthews",
}  # as they are written in prose
_SCORE = re.compile("|".join(_SCORES))
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")  # browsers break lines behind its hyphens


def render(template: str, **values: Any) -> str:
    """The page that a template of templates/ makes of some values. Everything is escaped but `plots.picture`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bertsmith.reports", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["told"] = told
    environment.filters["counted"] = formatting.counted
    environment.filters["visible"] = visible
    environment.filters["score"] = score_name
    for say in (formatting.percent, formatting.size, formatting.seconds, console.duration):
        environment.filters[say.__name__] = _unbroken(say)
    return environment.get_template(template).render(**values)


def number(value: float | None) -> str:
    """1,234 or 1.23; "–" for none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def told(text: str) -> Markup:
    """A sentence whose figures stay with their units and whose options stay whole where a line ends."""
    shown = _UNIT.sub(_NO_BREAK, str(escape(text)))
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', shown))


def score_name(name: str) -> str:
    """A score as people read it: "macro F1"."""
    return _SCORE.sub(lambda found: _SCORES[found[0]], name).replace("_", " ")


def visible(text: Any) -> str:
    """Somebody's text on one line; what would act on the page (marks of direction) is an escape."""
    return console.visible(str(text), one_line=True)


def _unbroken(say: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: say(value).replace(" ", _NO_BREAK)
