"""How numbers are said: "1 text", "2 texts", "12,000 lines"."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun, which is plural for all numbers but 1. plural: where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
