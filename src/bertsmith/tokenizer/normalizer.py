"""BERT's normaliser and word borders in two readings: the library's (`hf`) and the original's (`google`).

`hf` is what released fast tokenizers do: the library's own `BertNormalizer` and `BertPreTokenizer`, with the
Unicode tables of the installed library. `google` is what the authors' code did, with Unicode 14.0.0 pinned in
`unicode_classes.py`; it is made of the library's replaceable steps, so it stands whole in tokenizer.json.

Where they differ, counted over all 1,112,064 scalars between two letters (`benchmarks/tokenizer_parity.py`;
tokenizers 0.23.3, uncased: 138,283 scalars, cased: 137,843):

* Private code points (137,468): `hf` drops them with the controls, `google` keeps them.
* Marks, punctuation and format characters that Unicode gained after the library's tables and before 14.0 (384
  marks, 104 signs, 13 format controls): `hf` takes them for letters, `google` knows them.
* U+2B820 to U+2B91F (256): ideographs that `google` sets apart and `hf` leaves joined.
* Capitals that Unicode gained after 14.0 (55): `hf` lower-cases them, `google` does not know them.
* U+11938: the library's NFD leaves it whole, `google` parts it.
* Beyond single characters: a capital sigma at the end of a word is ς in `google`, as Python's `str.lower` has it,
  and σ in `hf`.

Letters that Unicode gains after version 17 and that a later library lower-cases are the one thing that is not
pinned: nobody can name them yet.
"""

from __future__ import annotations

from typing import Literal

from tokenizers import Regex, normalizers, pre_tokenizers

from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer import unicode_classes as classes

Normalizer = Literal["hf", "google"]

_IDEOGRAPHS = " ".join(f"{part.start:x}-{part.stop - 1:x}" for part in IDEOGRAPHS)
_ASCII_PUNCTUATION = "21-2f 3a-40 5b-60 7b-7e"
# Capitals that Unicode 15 to 17 added: the library lower-cases them, version 14 does not know them.
_LATER_CAPITALS = "1c89 a7cb-a7cc a7ce a7d2 a7d4 a7da a7dc 10d50-10d65 16ea0-16eb8"
# Tag characters are format controls, so none is left when these stand for the later capitals.
_FIRST_TAG = 0xE0020


def bert_normalizer(
    lowercase: bool, chinese: bool = True, strip_accents: bool | None = None, reading: Normalizer = "hf"
) -> normalizers.Normalizer:
    """`chinese` sets blanks round every CJK ideograph; `strip_accents=None` strips them exactly when
    lower-casing, as the released models do."""
    if reading == "hf":
        return normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
        )
    steps = [
        _replace(f"[\\x{{fffd}}{classes.inside(classes.CONTROLS)}]", ""),
        _replace(f"[{classes.inside(classes.BLANKS)}]", " "),
    ]
    if lowercase:
        steps += _lowered()
    if lowercase if strip_accents is None else strip_accents:
        parted = normalizers.Replace("\U00011938", "\U00011935\U00011930")
        steps += [parted, normalizers.NFD(), _replace(f"[{classes.inside(classes.MARKS)}]", "")]
    return normalizers.Sequence(steps)


def bert_borders(chinese: bool = True, reading: Normalizer = "hf") -> pre_tokenizers.PreTokenizer:
    """What cuts normalised text into words: blanks, and every punctuation character alone. In the `google`
    reading this is also where `chinese` sets ideographs apart: the library's `Replace` cannot insert blanks."""
    if reading == "hf":
        return pre_tokenizers.BertPreTokenizer()
    alone = [_ASCII_PUNCTUATION, classes.PUNCTUATION, *([_IDEOGRAPHS] if chinese else [])]
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" +"), behavior="removed"),
            pre_tokenizers.Split(Regex(f"[{''.join(map(classes.inside, alone))}]"), behavior="isolated"),
        ]
    )


def _lowered() -> list[normalizers.Normalizer]:
    # Python's rule for a capital sigma: final after a cased letter and not before one, passing over what has no
    # say. Then letter by letter, with the capitals that version 14 does not know out of the library's sight.
    cased, passed = classes.inside(classes.CASED), classes.inside(classes.IGNORABLE)
    final = _replace(f"[{cased}][{passed}]*\\K\\x{{3a3}}(?![{passed}]*[{cased}])", "ς")
    later = sorted(classes.members(_LATER_CAPITALS))
    hidden = [chr(_FIRST_TAG + i) for i in range(len(later))]
    return [
        final,
        *(normalizers.Replace(a, b) for a, b in zip(later, hidden, strict=True)),
        normalizers.Lowercase(),
        *(normalizers.Replace(b, a) for a, b in zip(later, hidden, strict=True)),
    ]


def _replace(pattern: str, content: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), content)
