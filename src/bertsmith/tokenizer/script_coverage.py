"""Recommend tokenizer options for the scripts of a text, and describe what a tokenizer loses of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertsmith.io.unicode_scripts import script_of

if TYPE_CHECKING:
    from bertsmith.tokenizer.tokenizer import Tokenizer

# Ratios of a text's letters.
_MIN_REPORTED_RATIO = 0.01
_MIN_SCRIPT_RATIO = 0.2  # a text with this ratio or more is written in the script
_MIN_CHINESE_RATIO = 0.05  # the option --chinese does not fit texts with a smaller ratio of Han and kana
# Of Japanese texts: some have more ideographs than kana, but Chinese texts have no kana.
_MIN_KANA_RATIO = 0.1
_KANA = ("Hiragana", "Katakana")
_SCRIPTS_WITHOUT_SPACES = ("Thai", "Lao", "Khmer", "Myanmar")
# BERT's lower-casing strips accents. In these scripts it removes vowel signs, or splits syllables.
_SCRIPTS_DAMAGED_BY_LOWERCASE = (
    "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam",
    "Sinhala", "Hangul",
)  # fmt: skip
JOINERS = "\u200c\u200d"
"""Zero-width characters that divide words of Persian, and form conjuncts in scripts of India."""
_SCRIPTS_WITH_JOINERS = {"Arabic", *_SCRIPTS_DAMAGED_BY_LOWERCASE}
_MIN_JOINER_RATIO = 0.0005  # of the letters


def letters_by_script(characters: Mapping[str, int]) -> dict[str, int]:
    """Return the number of letters by script, the most frequent first, from counts of each character."""
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            letters[script_of(character)] += count
    return dict(sorted(letters.items(), key=lambda item: (-item[1], item[0])))


def script_ratios(characters: Mapping[str, int]) -> dict[str, float]:
    """Return the ratio of each script among a text's letters, the largest first, without those below 1 %.

    Args:
        characters: Number of occurrences of each character.
    """
    letters = letters_by_script(characters)
    total = max(1, sum(letters.values()))
    return {script: round(n / total, 4) for script, n in letters.items() if n >= _MIN_REPORTED_RATIO * total}


def recommended_options(scripts: Mapping[str, float]) -> tuple[str, str] | None:
    """Recommend options of the command `tokenizer train` for a text in these scripts.

    Args:
        scripts: The ratio of each script among the letters.

    Returns:
        The options and the reason, or None if the default options fit.
    """
    written = [script for script, ratio in scripts.items() if ratio >= _MIN_SCRIPT_RATIO]
    if sum(scripts.get(name, 0) for name in _KANA) >= _MIN_KANA_RATIO:
        return (
            "--kind unigram --cased",
            "Japanese has no spaces between words, and accents are part of its letters",
        )
    if unspaced := [script for script in written if script in _SCRIPTS_WITHOUT_SPACES]:
        return (
            "--kind unigram --cased",
            f"{unspaced[0]} has no spaces between words, and its vowels count as accents",
        )
    if scripts.get("Han", 0) >= _MIN_SCRIPT_RATIO:
        return (
            "--chinese",
            f"{scripts['Han']:.0%} of the letters are Chinese characters, each of which is a word",
        )
    if damaged := [script for script in written if script in _SCRIPTS_DAMAGED_BY_LOWERCASE]:
        damage = "splits its syllables" if damaged[0] == "Hangul" else "strips its vowel signs as accents"
        ratio = f"{scripts[damaged[0]]:.0%}"
        return "--cased", f"{ratio} of the letters are {damaged[0]}, and without --cased BERT {damage}"
    return None


def lost_joiners(characters: Mapping[str, int], tokenizer: Tokenizer) -> int:
    """Return the number of joiners that a tokenizer removes; 0 if they are rare or the script has none."""
    letters = letters_by_script(characters)
    count, total = sum(characters.get(joiner, 0) for joiner in JOINERS), sum(letters.values())
    written = {script for script, number in letters.items() if number >= _MIN_SCRIPT_RATIO * total}
    if count <= _MIN_JOINER_RATIO * total or not written & _SCRIPTS_WITH_JOINERS:
        return 0
    return 0 if JOINERS[0] in tokenizer.normalize(f"a{JOINERS[0]}a") else count


def describe_script_mismatch(
    scripts: Mapping[str, float], kind: str, *, lowercase: bool, chinese: bool | None
) -> str | None:
    """Return a warning if a vocabulary of this kind and with these options does not fit a text, else None.

    Args:
        scripts: The ratio of each script among the text's letters, the largest first.
        kind: The tokenizer's kind.
        lowercase: The tokenizer lower-cases.
        chinese: The tokenizer was trained with `chinese`; None if that is unknown.
    """
    if kind == "byte_level_bpe" or not scripts:
        return None
    if chinese and sum(scripts.get(name, 0) for name in ("Han", *_KANA)) < _MIN_CHINESE_RATIO:
        return "--chinese is for Chinese text, and these letters are others: leave --chinese out"
    if (recommendation := recommended_options(scripts)) is None:
        return None
    options, reason = recommendation
    is_set = {
        "--chinese": chinese is not False,
        "--cased": not lowercase,
        "--kind unigram": kind == "unigram",
    }
    missing = [option for option in is_set if option in options and not is_set[option]]
    return f"{reason}: use a tokenizer trained with {' '.join(missing)}" if missing else None
