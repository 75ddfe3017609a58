"""WordPiece, the tokenizer of BERT: read vocab.txt, build the tokenizer, find word starts, clean up decoded text.

BERT's normalizer and pre-tokenizer have two variants: as in tokenizers (`hf`) and as in the original (`google`).
`hf` is the behavior of released fast tokenizers: `BertNormalizer` and `BertPreTokenizer` of the tokenizers
library, with the Unicode tables of the installed version. `google` is the behavior of the BERT authors' code, with
the tables of Unicode 14.0.0 in `unicode_classes.py`; it consists of the library's configurable steps, so
tokenizer.json contains all of it.

The variants differ in these characters, counted for each of the 1,112,064 Unicode scalar values between two
letters (`benchmarks/tokenizer_parity.py`; tokenizers 0.23.3; 138,283 characters uncased, 137,843 cased):

* Private-use characters (137,468): `hf` removes them like control characters, `google` keeps them.
* Marks (384), punctuation (104), and format characters (13) that Unicode gained after the library's tables and
  before 14.0: `hf` treats them as letters, `google` by their category.
* U+2B820 to U+2B91F (256): ideographs that `google` isolates and `hf` does not.
* Capitals that Unicode gained after 14.0 (55): `hf` lower-cases them, `google` does not.
* U+11938: the library's NFD leaves it unchanged, `google` decomposes it.
* Sequences of characters: a capital sigma at the end of a word becomes ς in `google`, as in Python's `str.lower`,
  and σ in `hf`.

`google` depends on the installed version in one respect: letters that Unicode gains after version 17 are
lower-cased as soon as the library does so.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertsmith.errors import InputError, corrupt_file_error, option
from bertsmith.formatting import pluralize
from bertsmith.io.text_io import read_lines
from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer import unicode_classes

logger = logging.getLogger(__name__)
NormalizerName = Literal["hf", "google"]
BERT_SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
PREFIX = "##"
MAX_WORD_LENGTHS: dict[NormalizerName, int] = {"hf": 100, "google": 200}
"""The characters above which a word is [UNK], by normalizer: as in transformers, and as in BERT's release."""
# The apostrophe of an English contraction with the spaces that decoding puts around it.
_CONTRACTION = re.compile(r"(?<=[^\W\d_]) (['’]) (?=(?:s|t|d|m|ll|re|ve)\b)", re.IGNORECASE)
_IDEOGRAPHS = " ".join(f"{block.start:x}-{block.stop - 1:x}" for block in IDEOGRAPHS)
_ASCII_PUNCTUATION = "21-2f 3a-40 5b-60 7b-7e"
# Capitals that Unicode 15 to 17 added. The library lower-cases them, but Unicode 14 does not have them.
_NEWER_CAPITALS = "1c89 a7cb-a7cc a7ce a7d2 a7d4 a7da a7dc 10d50-10d65 16ea0-16eb8"
# Tag characters represent the newer capitals during lower-casing. Texts contain none at that point: they are
# format characters, which an earlier step removes.
_FIRST_TAG = 0xE0020


def bert_normalizer(
    lowercase: bool,
    handle_chinese_chars: bool = True,
    strip_accents: bool | None = None,
    variant: NormalizerName = "hf",
) -> normalizers.Normalizer:
    """Build BERT's normalizer.

    Args:
        lowercase: Lower-case the text.
        handle_chinese_chars: Put spaces around every CJK ideograph, in the `hf` variant; in `google` the
            pre-tokenizer isolates them.
        strip_accents: Strip accents; None strips them exactly when lower-casing, as the released models do.
        variant: "hf" or "google", see the module's docstring.
    """
    if variant == "hf":
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=handle_chinese_chars,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
    steps = [
        _replace(f"[\\x{{fffd}}{unicode_classes.regex_ranges(unicode_classes.CONTROLS)}]", ""),
        _replace(f"[{unicode_classes.regex_ranges(unicode_classes.WHITESPACE)}]", " "),
    ]
    if lowercase:
        steps += _lowercase_steps()
    if lowercase if strip_accents is None else strip_accents:
        steps += [
            normalizers.Replace("\U00011938", "\U00011935\U00011930"),  # which the library's NFD leaves out
            normalizers.NFD(),
            _replace(f"[{unicode_classes.regex_ranges(unicode_classes.MARKS)}]", ""),
        ]
    return normalizers.Sequence(steps)


def bert_pre_tokenizer(
    handle_chinese_chars: bool = True, variant: NormalizerName = "hf"
) -> pre_tokenizers.PreTokenizer:
    """Build BERT's pre-tokenizer, which splits at spaces and isolates every punctuation character.

    Args:
        handle_chinese_chars: Isolate every CJK ideograph, in the `google` variant: its normalizer cannot, since
            `Replace` cannot insert spaces around a match. In the `hf` variant the normalizer does so.
        variant: "hf" or "google", see the module's docstring.
    """
    if variant == "hf":
        return pre_tokenizers.BertPreTokenizer()
    isolated_classes = [
        _ASCII_PUNCTUATION,
        unicode_classes.PUNCTUATION,
        *([_IDEOGRAPHS] if handle_chinese_chars else []),
    ]
    pattern = f"[{''.join(map(unicode_classes.regex_ranges, isolated_classes))}]"
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" +"), behavior="removed"),
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        ]
    )


def _lowercase_steps() -> list[normalizers.Normalizer]:
    # First Python's rule for a capital sigma: it becomes ς after a cased letter and not before one, skipping
    # case-ignorable characters. Then the library's rule for single letters; tags hide the newer capitals from it.
    cased = unicode_classes.regex_ranges(unicode_classes.CASED)
    ignorable = unicode_classes.regex_ranges(unicode_classes.IGNORABLE)
    final_sigma = _replace(f"[{cased}][{ignorable}]*\\K\\x{{3a3}}(?![{ignorable}]*[{cased}])", "ς")
    capitals = sorted(unicode_classes.expand(_NEWER_CAPITALS))
    tags = [chr(_FIRST_TAG + i) for i in range(len(capitals))]
    return [
        final_sigma,
        *(normalizers.Replace(capital, tag) for capital, tag in zip(capitals, tags, strict=True)),
        normalizers.Lowercase(),
        *(normalizers.Replace(tag, capital) for capital, tag in zip(capitals, tags, strict=True)),
    ]


def _replace(pattern: str, content: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), content)


def read_vocabulary(file: Path) -> list[str]:
    """Read the tokens of a vocab.txt by id, one per line; blank lines at the end are ignored.

    As in transformers, a repeated token has the id of its last line, and blank lines count. The other lines become
    tokens that no text has, so that all ids stay.
    """
    tokens = [line for _, line in read_lines(file)]
    while tokens and not tokens[-1]:
        tokens.pop()
    last = {token: i for i, token in enumerate(tokens)}
    unused = [i for i, token in enumerate(tokens) if not token or last[token] != i]
    if unused:
        message = "%s:%d: this line is blank or its token comes again (%s); no text gets its id. "
        message += (
            "If the model was trained with this file, nothing is wrong; else take the file from its source"
        )
        logger.warning(message, file, unused[0] + 1, pluralize(len(unused), "such line"))
    for i in unused:
        tokens[i] = f"[unused-line-{i + 1}]"
    return tokens


def build_wordpiece(
    tokens: Sequence[str],
    *,
    lowercase: bool,
    special_tokens: Mapping[str, str],
    handle_chinese_chars: bool = True,
    strip_accents: bool | None = None,
    normalizer: NormalizerName = "hf",
    location: object = "vocabulary",
) -> tokenizers.Tokenizer:
    """Build a backend tokenizer as transformers builds BERT's.

    Args:
        tokens: Tokens by id.
        lowercase: Lower-case the text.
        special_tokens: Special tokens by role.
        handle_chinese_chars: Make each CJK ideograph a word.
        strip_accents: Strip accents; None strips them if `lowercase`.
        normalizer: The variant of BERT's normalizer.
        location: The file that errors name.
    """
    for line_number, token in enumerate(tokens, start=1):
        if not token:
            raise corrupt_file_error(
                "empty_token", "the token is empty", location=f"{location}:{line_number}"
            )
    if len(set(tokens)) < len(tokens):
        duplicate, _ = Counter(tokens).most_common(1)[0]
        line_number = tokens.index(duplicate, tokens.index(duplicate) + 1) + 1
        raise corrupt_file_error(
            "duplicate_token", f"the token '{duplicate}' occurs twice", location=f"{location}:{line_number}"
        )
    vocabulary = {token: i for i, token in enumerate(tokens)}
    check_special_tokens(special_tokens.values(), vocabulary, location)
    max_length = MAX_WORD_LENGTHS[normalizer]
    model = models.WordPiece(vocabulary, unk_token=special_tokens["unk"], max_input_chars_per_word=max_length)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = bert_normalizer(lowercase, handle_chinese_chars, strip_accents, normalizer)
    backend.pre_tokenizer = bert_pre_tokenizer(handle_chinese_chars, normalizer)
    backend.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
    backend.post_processor = bert_template(special_tokens["cls"], special_tokens["sep"], vocabulary, location)
    backend.add_special_tokens(list(special_tokens.values()))
    return backend


def check_special_tokens(
    special_tokens: Iterable[str], vocabulary: Collection[str], location: object
) -> None:
    """Raise an `InputError` if a special token is not in the vocabulary."""
    for token in special_tokens:
        if token not in vocabulary:
            message = f"the special token {token} is missing"
            hint = "add it to the vocabulary, or name another one in tokenizer_config.json"
            raise InputError("special_token_missing", message, location=location, hint=hint)


def bert_template(
    cls: str, sep: str, token_ids: Mapping[str, int], location: object
) -> processors.TemplateProcessing:
    """Return BERT's template: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, with segment id 1 from B on."""
    try:
        return processors.TemplateProcessing(
            single=[cls, "$A", sep],
            pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
            special_tokens=[(cls, token_ids[cls]), (sep, token_ids[sep])],
        )
    except ValueError:  # Templates reserve the colon, and the dollar sign at the start.
        message = f"a template cannot contain tokens with the names {cls!r} and {sep!r}"
        hint = "rename the tokens"
        raise InputError("special_token_reserved", message, location=location, hint=hint) from None


def word_start_function(
    tokens: Sequence[str], special_ids: Sequence[int], prefix: str
) -> Callable[[NDArray[np.int64]], NDArray[np.bool_]]:
    """Return a function from ids [N] to bool [N], the tokens that start a word: those without the prefix."""
    if not prefix:
        raise InputError(
            "continuation_prefix_missing",
            "this WordPiece vocabulary does not mark the pieces that continue a word, so word boundaries "
            "are unknown",
            hint=f"mask tokens instead of words: {option('data.masking', 'token')}",
        )
    is_start = np.array([not token.startswith(prefix) for token in tokens], np.bool_)
    is_start[special_ids] = True
    return lambda ids: is_start[ids]


def join_contractions(text: str) -> str:
    """Join English contractions in decoded text: `don ' t` becomes `don't`.

    The backend's decoder cleans up other punctuation. The clean-up of transformers joins any apostrophe with the
    words around it, even that of a quoted word.
    """
    return _CONTRACTION.sub(r"\1", text)
