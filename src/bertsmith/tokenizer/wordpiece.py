"""WordPiece, the tokenizer of BERT: read vocab.txt, build the tokenizer, and clean up decoded text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, processors

from bertsmith.errors import InputError
from bertsmith.io.text_io import read_lines
from bertsmith.tokenizer.config_schema import check_special_tokens, corrupt_file_error
from bertsmith.tokenizer.normalizer import NormalizerName, bert_normalizer, bert_pre_tokenizer

BERT_SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
PREFIX = "##"
# The apostrophe of an English contraction with the spaces that decoding puts around it.
_CONTRACTION = re.compile(r"(?<=[^\W\d_]) (['’]) (?=(?:s|t|d|m|ll|re|ve)\b)", re.IGNORECASE)


def read_vocabulary(file: Path) -> list[str]:
    """Read the tokens of a vocab.txt by id, one per line; blank lines at the end are ignored."""
    tokens = [line for _, line in read_lines(file)]
    while tokens and not tokens[-1]:
        tokens.pop()
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
    model = models.WordPiece(vocabulary, unk_token=special_tokens["unk"], max_input_chars_per_word=100)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = bert_normalizer(lowercase, handle_chinese_chars, strip_accents, normalizer)
    backend.pre_tokenizer = bert_pre_tokenizer(handle_chinese_chars, normalizer)
    backend.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
    backend.post_processor = bert_template(special_tokens["cls"], special_tokens["sep"], vocabulary, location)
    backend.add_special_tokens(list(special_tokens.values()))
    return backend


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


def join_contractions(text: str) -> str:
    """Join English contractions in decoded text: `don ' t` becomes `don't`.

    The backend's decoder cleans up other punctuation. The clean-up of transformers joins any apostrophe with the
    words around it, even that of a quoted word.
    """
    return _CONTRACTION.sub(r"\1", text)
