"""Format counts, lists, fractions, times, and sizes for people: "12,000 lines", "12.3 %", "2.3 s", "1.2 MB"."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MAX_LISTED = 5
_MAX_MESSAGE = 4000  # characters of a message; the middle of a longer one is left out
# Controls (C0, DEL, C1), line separators, marks of the writing direction, and the surrogates by which Python
# represents bytes of a file name that are not UTF-8.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# The first 100 characters of a value of 200 or more in quotes; an apostrophe within a word is a part of the value.
_LONG_VALUE = re.compile(r"(?<!\w)'(?=((?s:.){100}))(?:[^']|(?<=\w)'(?=\w)){200,}'")


def escape_control_characters(text: str, *, one_line: bool = False) -> str:
    """Return a text with control characters replaced by escapes; line ends and tabs stay unless `one_line`."""
    unchanged = "" if one_line else "\n\t"
    return CONTROL.sub(lambda match: match[0] if match[0] in unchanged else _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code < 0xDD00:  # a byte that is not UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def format_message(text: str, max_length: int = _MAX_MESSAGE) -> str:
    """Return a message on one line, with its long values shortened and control characters as escapes."""
    if len(text) > max_length:
        text = f"{text[: max_length // 2]} … {text[-max_length // 2 :]}"
    return escape_control_characters(_LONG_VALUE.sub(r"'\1…'", text), one_line=True)


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, such as "1 text" or "12,000 texts".

    Args:
        count: The number of things.
        noun: The singular.
        plural: The plural, if it is not the singular with an s.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def join_names(names: Iterable[str], limit: int = _MAX_LISTED) -> str:
    """Return the first names, separated by commas, and the number of the others: "a, b and 12 more"."""
    all_names = list(names)
    rest = f" and {len(all_names) - limit:,} more" if len(all_names) > limit else ""
    return ", ".join(all_names[:limit]) + rest


def shorten(text: str, max_length: int) -> str:
    """Return a text on one line, without the end of one that has more characters."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def format_number(value: float | None, digits: int = 4) -> str:
    """Format an integer as "1,234", a float with `digits` decimals, and None as "–"."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def format_percent(fraction: float | None) -> str:
    """Format a fraction between 0 and 1 as "0.04 %" or "12.3 %", and None as "–".

    Rounding never gives "0 %" or "100 %": only 0 and 1 themselves do.
    """
    if fraction is None:
        return "–"
    if fraction in (0, 1):
        return f"{100 * fraction:.0f} %"
    if fraction < 0.0001:
        return "< 0.01 %"
    if 0.9999 < fraction < 1:
        return "> 99.99 %"
    return f"{100 * fraction:.{1 if 0.1 <= fraction < 0.999 else 2}f} %"


def format_seconds(value: float) -> str:
    """Format a duration of seconds to at least two digits: "25 ms", "2.3 s", "140 s"."""
    # The bounds are the values from which the shown digits round up to the next form.
    number, unit = (1000 * value, "ms") if 0 < value < 0.9995 else (value, "s")
    if number >= 9.95:
        return f"{number:,.0f} {unit}"
    if 0 < number < 0.095:
        return "< 0.1 ms"
    return f"{number:.2f} {unit}" if 0 < number < 0.995 else f"{number:.1f} {unit}"


def format_bytes(number: float) -> str:
    """Format a number of bytes: "37 bytes", "12 kB", "2.3 MB"; 1 kB is 1,000 bytes."""
    if number < 999.5:
        return pluralize(round(number), "byte")
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.5 or unit == "TB":
            break
    return f"{number:.1f} {unit}" if number < 9.95 else f"{number:,.0f} {unit}"
