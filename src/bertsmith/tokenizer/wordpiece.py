"""WordPiece tokenizers: BERT's vocab.txt read, its tokenizer built as the reference builds it, its text joined."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, processors

from bertsmith.errors import InputError
from bertsmith.io.files import read_lines
from bertsmith.tokenizer.normalizer import Normalizer, bert_borders, bert_normalizer

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
PREFIX = "##"
_AGAIN = "take the file from its source again"
# An apostrophe was a word of its own: what stands before and behind it in English contractions.
_CONTRACTION = re.compile(r"(?<=[^\W\d_]) (['’]) (?=(?:s|t|d|m|ll|re|ve)\b)", re.IGNORECASE)


def read_vocabulary(file: Path) -> list[str]:
    """The tokens of a vocab.txt by id, one a line; blank lines at its end are none."""
    tokens = [line for _, line in read_lines(file)]
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def wordpiece(
    tokens: Sequence[str],
    *,
    lowercase: bool,
    specials: Mapping[str, str],
    place: str,
    chinese: bool = True,
    strip_accents: bool | None = None,
    normalizer: Normalizer = "hf",
) -> tokenizers.Tokenizer:
    """The library's tokenizer of a list id → token, as the reference builds it; `place` begins what is
    wrong."""
    for number, token in enumerate(tokens, start=1):
        if not token:
            raise InputError(f"{place}:{number}: an empty token", _AGAIN)
    if len(set(tokens)) < len(tokens):
        twice, _ = Counter(tokens).most_common(1)[0]
        second = tokens.index(twice, tokens.index(twice) + 1) + 1
        raise InputError(f"{place}:{second}: the token '{twice}' occurs twice", _AGAIN)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    for token in specials.values():
        if token not in vocabulary:
            raise InputError(
                f"{place}: the special token {token} is missing", "a BERT vocabulary has one token per line"
            )
    model = models.WordPiece(vocabulary, unk_token=specials["unk"], max_input_chars_per_word=100)
    library = tokenizers.Tokenizer(model)
    library.normalizer = bert_normalizer(lowercase, chinese, strip_accents, normalizer)
    library.pre_tokenizer = bert_borders(chinese, normalizer)
    library.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
    library.post_processor = framed(specials["cls"], specials["sep"], vocabulary, place)
    library.add_special_tokens(list(specials.values()))
    return library


def framed(cls: str, sep: str, ids: Mapping[str, int], place: str) -> processors.TemplateProcessing:
    """BERT's frame: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, segment 1 from B on."""
    try:
        return processors.TemplateProcessing(
            single=[cls, "$A", sep],
            pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
            special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
        )
    except ValueError:  # a colon is the template's own, and so is a dollar sign to begin with
        raise InputError(
            f"{place}: no text can be framed by tokens called {cls!r} and {sep!r}", "rename them"
        ) from None


def contracted(text: str) -> str:
    """Decoded text with English contractions joined: `don ' t` is `don't`. The library closes up other
    punctuation; the reference's clean-up joins whatever stands around an apostrophe, quoted words, too."""
    return _CONTRACTION.sub(r"\1", text)
