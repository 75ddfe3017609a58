"""Recommend tokenizer options for the scripts of a text, and find the script of a tokenizer's vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bertsmith.io.unicode_scripts import script_of
from bertsmith.tokenizer.tokenizer import Tokenizer

# Ratios of a text's letters.
_MIN_REPORTED_RATIO = 0.01
_MIN_SCRIPT_RATIO = 0.2  # a text with this ratio or more is written in the script
_MIN_CHINESE_RATIO = 0.05  # the option --chinese does not fit texts with a smaller ratio of Han and kana
_MIN_KANA_RATIO = (
    0.1  # of Japanese texts: some have more ideographs than kana, but Chinese texts have no kana
)
# Ratio of a vocabulary's entries: 0.25 to 0.9 in Chinese ones, 0.11 in that of multilingual BERT.
_MIN_HAN_ENTRY_RATIO = 0.15
_KANA = ("Hiragana", "Katakana")
_SCRIPTS_WITHOUT_SPACES = ("Thai", "Lao", "Khmer", "Myanmar")
# BERT's lower-casing strips accents. In these scripts it removes vowel signs, or splits syllables.
_SCRIPTS_DAMAGED_BY_LOWERCASE = (
    "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam",
    "Sinhala", "Hangul",
)  # fmt: skip


def script_ratios(characters: Mapping[str, int]) -> dict[str, float]:
    """Return the ratio of each script among a text's letters, the largest first, without those below 1 %.

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
    """Recommend options of the command `tokenizer train` for a text in these scripts.

    Args:
        scripts: The ratio of each script among the letters.

    Returns:
        The options and the reason, or None if the default options fit.
    """
    kana = sum(scripts.get(name, 0) for name in _KANA)
    main_script = max(scripts, key=lambda script: scripts[script], default="")
    if kana >= _MIN_KANA_RATIO:
        return (
            "--kind unigram --cased",
            "Japanese has no spaces between words, and accents are part of its letters",
        )
    if main_script in _SCRIPTS_WITHOUT_SPACES and scripts[main_script] >= _MIN_SCRIPT_RATIO:
        return (
            "--kind unigram --cased",
            f"{main_script} has no spaces between words, and its vowels count as accents",
        )
    if scripts.get("Han", 0) >= _MIN_SCRIPT_RATIO:
        return (
            "--chinese",
            f"{_percent(scripts['Han'])} of the letters are Chinese characters, each of which is a word",
        )
    if main_script in _SCRIPTS_DAMAGED_BY_LOWERCASE and scripts[main_script] >= _MIN_SCRIPT_RATIO:
        damage = "splits its syllables" if main_script == "Hangul" else "strips its vowel signs as accents"
        return (
            "--cased",
            f"{_percent(scripts[main_script])} of the letters are {main_script}, and without --cased "
            f"BERT {damage}",
        )
    return None


def describe_script_mismatch(
    scripts: Mapping[str, float], kind: str, *, lowercase: bool, chinese: bool
) -> str | None:
    """Return a warning if a vocabulary of this kind and with these options does not fit a text, else None.

    Args:
        scripts: The ratio of each script among the text's letters, the largest first.
        kind: The tokenizer's kind.
        lowercase: The tokenizer lower-cases.
        chinese: The tokenizer was trained with `chinese`.
    """
    if kind == "byte_level_bpe" or not scripts:
        return None
    if chinese and sum(scripts.get(name, 0) for name in ("Han", *_KANA)) < _MIN_CHINESE_RATIO:
        main_script = next(iter(scripts))
        return (
            f"--chinese is for Chinese text, and {_percent(scripts[main_script])} of these letters are "
            f"{main_script}: rare characters take entries that longer pieces would have; leave --chinese out"
        )
    if (recommendation := recommended_options(scripts)) is None:
        return None
    options, reason = recommendation
    is_set = {"--chinese": chinese, "--cased": not lowercase, "--kind unigram": kind == "unigram"}
    missing = [option for option in is_set if option in options and not is_set[option]]
    return f"{reason}: train this tokenizer with {' '.join(missing)}" if missing else None


def tokenizer_script(tokenizer: Tokenizer) -> str:
    """Return the script that a tokenizer was trained for, "" if no entry of its vocabulary has a letter.

    It is "Han" if the first letter of enough entries is an ideograph, otherwise the most frequent script of first
    letters.
    """
    entries = {i: token for i, token in enumerate(tokenizer.tokens) if i not in tokenizer.all_special_ids}
    if tokenizer.kind == "byte_level_bpe":  # Single characters are bytes, which every vocabulary has.
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
