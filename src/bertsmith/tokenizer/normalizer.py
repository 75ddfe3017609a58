"""BERT's normalizer and pre-tokenizer in two variants: the library's (`hf`) and the original (`google`).

`hf` is the behavior of released fast tokenizers: the library's `BertNormalizer` and `BertPreTokenizer`, with the
Unicode tables of the installed library. `google` is the behavior of the authors' code, with Unicode 14.0.0 pinned
in `unicode_classes.py`; it consists of the library's configurable steps, so tokenizer.json contains all of it.

Differences, counted over all 1,112,064 scalars between two letters (`benchmarks/tokenizer_parity.py`; tokenizers
0.23.3, uncased: 138,283 scalars, cased: 137,843):

* Private code points (137,468): `hf` drops them with the controls, `google` keeps them.
* Marks, punctuation, and format characters that Unicode gained after the library's tables and before 14.0 (384
  marks, 104 punctuation characters, 13 format controls): `hf` treats them as letters, `google` by their category.
* U+2B820 to U+2B91F (256): ideographs that `google` isolates and `hf` does not.
* Capitals that Unicode gained after 14.0 (55): `hf` lower-cases them, `google` does not.
* U+11938: the library's NFD leaves it unchanged, `google` decomposes it.
* Beyond single characters: a capital sigma at the end of a word becomes ς in `google`, as in Python's `str.lower`,
  and σ in `hf`.

One thing is not pinned, since nobody can list it yet: letters that Unicode gains after version 17 and that a later
library lower-cases.
"""

from __future__ import annotations

from typing import Literal

from tokenizers import Regex, normalizers, pre_tokenizers

from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer import unicode_classes

NormalizerName = Literal["hf", "google"]

_IDEOGRAPHS = " ".join(f"{block.start:x}-{block.stop - 1:x}" for block in IDEOGRAPHS)
_ASCII_PUNCTUATION = "21-2f 3a-40 5b-60 7b-7e"
# Capitals that Unicode 15 to 17 added: the library lower-cases them, version 14 does not have them.
_LATER_CAPITALS = "1c89 a7cb-a7cc a7ce a7d2 a7d4 a7da a7dc 10d50-10d65 16ea0-16eb8"
# Tag characters can represent the later capitals for a while: as format controls they are removed from texts
# before.
_FIRST_TAG = 0xE0020


def bert_normalizer(
    lowercase: bool, chinese: bool = True, strip_accents: bool | None = None, variant: NormalizerName = "hf"
) -> normalizers.Normalizer:
    """Build BERT's normalizer.

    Args:
        lowercase: Lower-case the text.
        chinese: Put spaces around every CJK ideograph.
        strip_accents: Strip accents; None strips them exactly when lower-casing, as the released models do.
        reading: The library's variant or the original's.
    """
    if variant == "hf":
        return normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
        )
    steps = [
        _replace(f"[\\x{{fffd}}{unicode_classes.regex_ranges(unicode_classes.CONTROLS)}]", ""),
        _replace(f"[{unicode_classes.regex_ranges(unicode_classes.WHITESPACE)}]", " "),
    ]
    if lowercase:
        steps += _lowercase_steps()
    if lowercase if strip_accents is None else strip_accents:
        steps += [
            normalizers.Replace("\U00011938", "\U00011935\U00011930"),
            normalizers.NFD(),
            _replace(f"[{unicode_classes.regex_ranges(unicode_classes.MARKS)}]", ""),
        ]
    return normalizers.Sequence(steps)


def bert_pre_tokenizer(chinese: bool = True, variant: NormalizerName = "hf") -> pre_tokenizers.PreTokenizer:
    """Build BERT's pre-tokenizer, which splits at spaces and isolates every punctuation character.

    The `google` variant also isolates ideographs here if `chinese`: the library's `Replace` cannot insert spaces.
    """
    if variant == "hf":
        return pre_tokenizers.BertPreTokenizer()
    isolated = [_ASCII_PUNCTUATION, unicode_classes.PUNCTUATION, *([_IDEOGRAPHS] if chinese else [])]
    pattern = f"[{''.join(map(unicode_classes.regex_ranges, isolated))}]"
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" +"), behavior="removed"),
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        ]
    )


def _lowercase_steps() -> list[normalizers.Normalizer]:
    # Python's rule for a capital sigma: final after a cased letter and not before one, skipping case-ignorable
    # characters. Then the library's letter-by-letter rule, with the capitals that version 14 does not have
    # replaced.
    cased = unicode_classes.regex_ranges(unicode_classes.CASED)
    ignorable = unicode_classes.regex_ranges(unicode_classes.IGNORABLE)
    final_sigma = _replace(f"[{cased}][{ignorable}]*\\K\\x{{3a3}}(?![{ignorable}]*[{cased}])", "ς")
    capitals = sorted(unicode_classes.expand(_LATER_CAPITALS))
    tags = [chr(_FIRST_TAG + i) for i in range(len(capitals))]
    return [
        final_sigma,
        *(normalizers.Replace(capital, tag) for capital, tag in zip(capitals, tags, strict=True)),
        normalizers.Lowercase(),
        *(normalizers.Replace(tag, capital) for capital, tag in zip(capitals, tags, strict=True)),
    ]


def _replace(pattern: str, content: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), content)
