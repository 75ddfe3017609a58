"""Tokenizer options that the scripts of a text need, and the script that a tokenizer was trained for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bertsmith.io.unicode_scripts import script_of
from bertsmith.tokenizer.tokenizer import Tokenizer

# Ratios of a text's letters.
_MIN_REPORTED_RATIO = 0.01
_MIN_SCRIPT_RATIO = 0.2  # from here on a text counts as written in the script
_MAX_ABSENT_RATIO = 0.05  # below, it counts as not written in it
_MIN_KANA_RATIO = 0.1  # some Japanese texts have more ideographs than kana; Chinese has no kana
# Ratio of a vocabulary's entries: Chinese ones have 25 to 90 % ideographs, the published multilingual one 11 %.
_MIN_HAN_ENTRY_RATIO = 0.15
_KANA = ("Hiragana", "Katakana")
_WITHOUT_SPACES = ("Thai", "Lao", "Khmer", "Myanmar")
# BERT's lower-casing strips accents. In these scripts it removes vowel signs, or splits syllables.
_DAMAGED_BY_STRIPPING = (
    "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam",
    "Sinhala", "Hangul",
)  # fmt: skip


def script_ratios(characters: Mapping[str, int]) -> dict[str, float]:
    """Return the ratio of each script among a text's letters, the largest first, from 1 % on.

    Args:
        characters: Number of occurrences of each character.
    """
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            letters[script_of(character)] += count
    total = max(1, letters.total())
    ordered = sorted(letters.items(), key=lambda item: (-item[1], item[0]))
    return {script: round(n / total, 4) for script, n in ordered if n >= _MIN_REPORTED_RATIO * total}


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def recommended_options(scripts: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the options of `tokenizer train` that a text in these scripts needs, and the reason.

    Args:
        scripts: The ratio of each script among the letters.

    Returns:
        None if the default options fit.
    """
    kana = sum(scripts.get(name, 0) for name in _KANA)
    main = max(scripts, key=lambda script: scripts[script], default="")
    if kana >= _MIN_KANA_RATIO:
        return (
            "--kind unigram --cased",
            "Japanese has no spaces between words, and accents are part of its letters",
        )
    if main in _WITHOUT_SPACES and scripts[main] >= _MIN_SCRIPT_RATIO:
        return (
            "--kind unigram --cased",
            f"{main} has no spaces between words, and its vowels count as accents",
        )
    if scripts.get("Han", 0) >= _MIN_SCRIPT_RATIO:
        return (
            "--chinese",
            f"{_percent(scripts['Han'])} of the letters are Chinese characters, each of which is a word",
        )
    if main in _DAMAGED_BY_STRIPPING and scripts[main] >= _MIN_SCRIPT_RATIO:
        damage = "splits its syllables" if main == "Hangul" else "strips its vowel signs as accents"
        return (
            "--cased",
            f"{_percent(scripts[main])} of the letters are {main}, and without --cased BERT {damage}",
        )
    return None


def describe_script_mismatch(
    scripts: Mapping[str, float], kind: str, *, lowercase: bool, chinese: bool
) -> str | None:
    """Return a warning if a vocabulary of this kind and with these options does not fit a text, else None.

    Args:
        scripts: The ratio of each script among the letters.
        kind: The tokenizer's kind.
        lowercase: The tokenizer lower-cases.
        chinese: The tokenizer was trained with `chinese`.
    """
    if kind == "byte_level_bpe" or not scripts:
        return None
    if chinese and sum(scripts.get(name, 0) for name in ("Han", *_KANA)) < _MAX_ABSENT_RATIO:
        main = next(iter(scripts))
        return (
            f"--chinese is for Chinese text, and {_percent(scripts[main])} of these letters are {main}: rare "
            "characters take entries that longer pieces would have; leave --chinese out"
        )
    if (recommendation := recommended_options(scripts)) is None:
        return None
    options, reason = recommendation
    is_set = {"--chinese": chinese, "--cased": not lowercase, "--kind unigram": kind == "unigram"}
    missing = [option for option in is_set if option in options and not is_set[option]]
    return f"{reason}: train this tokenizer with {' '.join(missing)}" if missing else None


def tokenizer_script(tokenizer: Tokenizer) -> str:
    """Return the script that a tokenizer was trained for, "" if no entry has a letter.

    It is "Han" if enough entries start with an ideograph, otherwise the script in which most entries start.
    """
    entries = {i: token for i, token in enumerate(tokenizer.tokens) if i not in tokenizer.all_special_ids}
    if tokenizer.kind == "byte_level_bpe":  # its single-character entries are bytes, whatever the text
        entries = {i: tokenizer.decode([i]) for i, token in entries.items() if len(token) > 1}
    scripts: Counter[str] = Counter()
    for text in entries.values():
        if letters := [character for character in text if character.isalpha()]:
            scripts[script_of(letters[0])] += 1
    if not scripts:
        return ""
    kana = sum(scripts[name] for name in _KANA)
    if scripts["Han"] >= _MIN_HAN_ENTRY_RATIO * scripts.total() and kana < _MIN_KANA_RATIO * scripts["Han"]:
        return "Han"
    return min(scripts, key=lambda name: (-scripts[name], name))
