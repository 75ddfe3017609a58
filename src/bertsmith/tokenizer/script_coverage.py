"""Which tokenizer the scripts of a text ask for, and whose text a tokenizer was made for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bertsmith.io.unicode_scripts import script_of
from bertsmith.tokenizer.tokenizer import Tokenizer

_TOLD = 0.01  # of the letters: scripts below are left out
_MUCH = 0.2  # of the letters, from which on a text is in this script
_LITTLE = 0.05  # below which it is not
_SOME_KANA = 0.1  # Japanese has more ideographs than kana in some texts, Chinese has no kana
_OF_ENTRIES = 0.15  # a Chinese vocabulary has 25 to 90 % ideographs, the published multilingual one 11 %
_KANA = ("Hiragana", "Katakana")
_WITHOUT_SPACES = ("Thai", "Lao", "Khmer", "Myanmar")
_STRIPPED = (  # what BERT's lower-casing takes for accents are vowels here, or it breaks syllables up
    "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam",
    "Sinhala", "Hangul",
)  # fmt: skip


def script_shares(characters: Mapping[str, int]) -> dict[str, float]:
    """The share of each script in the letters of a text, the largest first; those of 1 % and more.

    characters: how often each one occurs.
    """
    letters: Counter[str] = Counter()
    for character, times in characters.items():
        if character.isalpha():
            letters[script_of(character)] += times
    total = max(1, letters.total())
    ordered = sorted(letters.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(times / total, 4) for name, times in ordered if times >= _TOLD * total}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def fitting_options(scripts: Mapping[str, float]) -> tuple[str, str] | None:
    """What of `tokenizer train` a text in these scripts needs, and why; None where the usual settings fit.

    scripts: the shares of the letters.
    """
    kana = sum(scripts.get(name, 0) for name in _KANA)
    name = max(scripts, key=lambda script: scripts[script], default="")
    if kana >= _SOME_KANA:
        return (
            "--kind unigram --cased",
            "Japanese has no spaces between words, and accents are part of its letters",
        )
    if name in _WITHOUT_SPACES and scripts[name] >= _MUCH:
        return (
            "--kind unigram --cased",
            f"{name} has no spaces between words, and its vowels count as accents",
        )
    if scripts.get("Han", 0) >= _MUCH:
        return (
            "--chinese",
            f"{_percent(scripts['Han'])} of the letters are Chinese characters, each of which is a word",
        )
    if name in _STRIPPED and scripts[name] >= _MUCH:
        broken = "breaks its syllables up" if name == "Hangul" else "strips its vowel signs as accents"
        return (
            "--cased",
            f"{_percent(scripts[name])} of the letters are {name}, and without --cased BERT {broken}",
        )
    return None


def misfit(scripts: Mapping[str, float], kind: str, *, lowercase: bool, chinese: bool) -> str | None:
    """A remark where a vocabulary of this kind, trained with these options, does not fit the text; else None."""
    if kind == "byte_level_bpe" or not scripts:
        return None
    if chinese and sum(scripts.get(name, 0) for name in ("Han", *_KANA)) < _LITTLE:
        most = next(iter(scripts))
        return (
            f"--chinese is for Chinese text, and {_percent(scripts[most])} of these letters are {most}: rare "
            "characters take entries that longer pieces would have; leave --chinese out"
        )
    if (needed := fitting_options(scripts)) is None:
        return None
    options, why = needed
    given = {"--chinese": chinese, "--cased": not lowercase, "--kind unigram": kind == "unigram"}
    missing = [option for option in given if option in options and not given[option]]
    return f"{why}: train this tokenizer with {' '.join(missing)}" if missing else None


def script_of_tokenizer(tokenizer: Tokenizer) -> str:
    """The script that a tokenizer was made for: "Han" where ideographs begin a good part of its entries, else what
    most of them begin with; "" where none has a letter."""
    texts = {i: token for i, token in enumerate(tokenizer.tokens) if i not in tokenizer.special_ids}
    if tokenizer.kind == "byte_level_bpe":  # whose first entries are all bytes, whatever the text
        texts = {i: tokenizer.decode([i]) for i, token in texts.items() if len(token) > 1}
    scripts: Counter[str] = Counter()
    for text in texts.values():
        if letters := [character for character in text if character.isalpha()]:
            scripts[script_of(letters[0])] += 1
    if not scripts:
        return ""
    kana = sum(scripts[name] for name in _KANA)
    if scripts["Han"] >= _OF_ENTRIES * scripts.total() and kana < _SOME_KANA * scripts["Han"]:
        return "Han"
    return min(scripts, key=lambda name: (-scripts[name], name))
