"""Made-up examples that show what a model can read: a word at a distance, and evidence on either side of a gap.

The words between are random, so that only the state of the right token, or one that reads it, has the answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from bertsmith import rng
from bertsmith.io import atomic

Side = Literal["left", "right", "both"]

_LANGUAGES = {"china": "chinese", "france": "french", "spain": "spanish", "japan": "japanese"}
_FILLERS = (
    "the",
    "of",
    "and",
    "in",
    "to",
    "was",
    "for",
    "on",
    "as",
    "with",
    "by",
    "that",
    "from",
    "at",
    "which",
)
_CLOZE_FILLERS = 3  # on each side of the gap


def write_agreement(file: Path, gap: int, size: int, seed: int) -> Path:
    """Write labeled texts: "i was born in china . <gap words> . my language is"."""
    countries = _draw_countries(size, seed, "agreement places")
    lines = ["text,label"]
    for country, filler in zip(countries, _draw_fillers(size, gap, seed, "agreement words"), strict=True):
        lines.append(f"i was born in {country} . {filler} . my language is,{_LANGUAGES[country]}")
    atomic.write_text(file, "\n".join(lines) + "\n")
    return file


def write_cloze(file: Path, side: Side, size: int, seed: int) -> Path:
    """Write sentences whose word "what" has a tag that the evidence decides, one word and tag per line.

    The word's tag is the language of the country on the left or on the right of it. With evidence on both sides,
    it says if the two countries, of two, are the same: either side alone says nothing, and a linear head cannot
    tell it from the states of two directions that are joined.
    """
    num_countries = 2 if side == "both" else len(_LANGUAGES)
    countries = {
        name: _draw_countries(size, seed, f"cloze {name}", num_countries) for name in ("left", "right")
    }
    fillers = {
        name: _draw_fillers(size, _CLOZE_FILLERS, seed, f"cloze words {name}") for name in ("left", "right")
    }
    sentences = []
    for i in range(size):
        first, second = countries["left"][i], countries["right"][i]
        tag = _LANGUAGES[first if side == "left" else second]
        if side == "both":
            tag = "same" if first == second else "other"
        start = f"born in {first} " if side != "right" else ""
        end = f" born in {second}" if side != "left" else ""
        words = f"{start}{fillers['left'][i]} what {fillers['right'][i]}{end}".split()
        sentences.append("".join(f"{word}\t{f'B-{tag}' if word == 'what' else 'O'}\n" for word in words))
    atomic.write_text(file, "\n".join(sentences))
    return file


def _draw_countries(size: int, seed: int, purpose: str, num_countries: int = len(_LANGUAGES)) -> list[str]:
    indices = rng.integers(seed, purpose, num_countries, np.arange(size))
    return [list(_LANGUAGES)[i] for i in indices.tolist()]


def _draw_fillers(size: int, length: int, seed: int, purpose: str) -> list[str]:
    indices = rng.integers(seed, purpose, len(_FILLERS), np.arange(size * length)).reshape(size, length)
    return [" ".join(_FILLERS[i] for i in row) for row in indices.tolist()]
