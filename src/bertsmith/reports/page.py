"""Render a self-contained page from a template: text is escaped, plots and scripts are inline, no links.

Pages extend `base.html`, which has the styles, for light and dark color schemes and for screens of any width.
`parts.html` has macros for tables that scroll, bars, stacked bars, findings, and figures.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from bertsmith import console, formatting
from bertsmith.errors import InputError
from bertsmith.io import atomic

_MAX_FRAME_BYTES = 16_000_000  # of a page in a notebook, which is saved with the notebook
_NO_BREAK_SPACE = "\u00a0"
_UNIT = re.compile(r"(?<=\d) (?=%|(?:bytes?|kB|MB|GB|TB|ms|s|min|h)\b)")
_SCORE_NAMES = {
    "f1": "F1",
    "ndcg": "nDCG",
    "mrr": "MRR",
    "auc": "AUC",
    "mlm": "MLM",
    "nsp": "NSP",
    "matthews": "Matthews",
}
_SCORE_NAME = re.compile("|".join(_SCORE_NAMES))
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")  # browsers break lines after its hyphens


def render(template: str, **values: Any) -> str:
    """Render a template of templates/; all values are escaped except Markup, such as that of `plots.to_svg`."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bertsmith.reports", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": partial(formatting.format_number, digits=2),
        "sentence": sentence,
        "counted": formatting.pluralize,
        "visible": visible,
        "score": score_name,
        "percent": _unbroken(formatting.format_percent),
        "size": _unbroken(formatting.format_bytes),
        "seconds": _unbroken(formatting.format_seconds),
        "duration": _unbroken(console.format_duration),
    }
    return environment


class Script(NamedTuple):
    """A script of a page.

    Attributes:
        text: Its source.
        digest: The digest by which the page's content security policy permits this script and no other.
    """

    text: Markup
    digest: str


def load_script(name: str) -> Script:
    """Read a script of templates/."""
    text = (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return Script(Markup(text), f"sha256-{digest}")


def check_suffix(
    file: str | Path, argument: str = "output", suffixes: Sequence[str] = (".html", ".png")
) -> str:
    """Return the suffix of a file for a page or a plot; raise InputError for others."""
    suffix = Path(file).suffix.lower()
    if suffix not in suffixes:
        endings = " or ".join(suffixes)
        message, hint = f"the name does not end in {endings}", f"name a file that ends in {endings}"
        raise InputError("wrong_file_suffix", message, location=file, argument=argument, hint=hint)
    return suffix


def write_page(path: str | Path, page: str) -> None:
    """Write a page atomically; MachineError if it cannot be written."""
    with atomic.write_errors(path):
        atomic.write_text(Path(path), page)


def notebook_frame(page: str) -> str:
    """Return HTML that shows a page in a notebook, in a frame of its own; a page of over 16 MB is only named."""
    if len(page) > _MAX_FRAME_BYTES:
        size = formatting.format_bytes(len(page))
        return f"<p>A page of {size} is too large for a notebook: save it as a file.</p>"
    start = '<iframe sandbox="allow-scripts" style="width: 100%; height: 46rem; border: 0" srcdoc="'
    return f'{start}{escape(page)}"></iframe>'


def sentence(text: str) -> Markup:
    """Escape a sentence, and prevent line breaks between numbers and units and within command-line options."""
    escaped = _UNIT.sub(_NO_BREAK_SPACE, str(escape(text)))
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', escaped))


def describe_lengths(summary: Mapping[str, Any], noun: str, unit: str) -> str:
    """Describe a distribution of lengths: "3 texts of 2 to 9 tokens; median 4, 95 % have up to 9"."""
    return (
        f"{formatting.pluralize(summary['number'], noun)} of {summary['least']:,} to {summary['most']:,} {unit}; "
        f"median {summary['median']:,}, 95 % have up to {summary['percentile_95']:,}"
    )


def score_name(name: str) -> str:
    """Return a metric's name for readers: "macro F1" for "macro_f1"."""
    return _SCORE_NAME.sub(lambda match: _SCORE_NAMES[match[0]], name).replace("_", " ")


def visible(text: Any) -> str:
    """Return a text on one line, with control characters and direction marks as escapes."""
    return formatting.escape_control_characters(str(text), one_line=True)


def _unbroken(formatter: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return the formatter with no-break spaces."""
    return lambda value: formatter(value).replace(" ", _NO_BREAK_SPACE)
