"""One self-contained page from a template beside the code: text escaped, plots inside, no script, no link."""

from __future__ import annotations

from typing import Any

import jinja2

from bertsmith import console


def render(template: str, **values: Any) -> str:
    """The page that a template of templates/ makes of some values. Everything is escaped but `plots.Plot`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bertsmith.reports", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["percent"] = percent
    environment.filters["duration"] = console.duration
    return environment.get_template(template).render(**values)


def number(value: float) -> str:
    """1,234 or 1.23."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def percent(share: float | None) -> str:
    """A share of 0.0123 as 1.23 %; "" for none."""
    if share is None:
        return ""
    digits = 0 if share in (0, 1) else 1 if share >= 0.1 else 2 if share >= 0.0001 else 4
    return f"{100 * share:.{digits}f} %"
