"""How numbers and lists are said: "1 text", "12,000 lines", "12.3 %", "2.3 s", "1.2 MB", "a, b and 7 more"."""

from __future__ import annotations

from collections.abc import Iterable

_NAMED = 5  # things that a sentence lists


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun, which is plural for all numbers but 1. plural: where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[str], most: int = _NAMED) -> str:
    """a, b, c and 12 more."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def percent(share: float | None) -> str:
    """A share between 0 and 1: "0 %", "0.04 %", "12.3 %", "100 %"; "–" for none. All and nothing are said of
    exactly these alone."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    if share < 0.0001:
        return "< 0.01 %"
    if 0.9999 < share < 1:
        return "> 99.99 %"
    return f"{100 * share:.{1 if 0.1 <= share < 0.999 else 2}f} %"


def seconds(value: float) -> str:
    """A short time, in two digits or more: "25 ms", "2.3 s", "140 s"."""
    number, unit = (1000 * value, "ms") if 0 < value < 0.9995 else (value, "s")
    if number >= 9.95:
        return f"{number:,.0f} {unit}"
    if 0 < number < 0.095:
        return "< 0.1 ms"
    return f"{number:.2f} {unit}" if 0 < number < 0.995 else f"{number:.1f} {unit}"


def size(number: float) -> str:
    """Bytes: "37 bytes", "12 kB", "2.3 MB"; a kB is 1,000 bytes."""
    if number < 999.5:
        return counted(round(number), "byte")
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.5 or unit == "TB":
            break
    return f"{number:.1f} {unit}" if number < 9.95 else f"{number:,.0f} {unit}"
