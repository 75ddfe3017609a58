"""Encode texts with the backend, very long ones in pieces, so that memory does not grow with a text's length.

The backend needs some hundred bytes per character. Pieces end before a space between two letters or digits, where
all tokenizers split, so that the tokens are those of the whole text. Without such a space, a piece ends after
`PIECE_SIZE` characters, and a token there may differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers

from bertsmith.errors import InputError
from bertsmith.io.values import to_text

PIECE_SIZE = 1 << 16  # characters
_MAX_EXPANSION = 1000  # of a text by a normalizer; NFKC has 18


class PiecewiseEncoding:
    """The first tokens of a text, and the number of all of them, with the attributes of `tokenizers.Encoding`.

    Attributes:
        ids: The ids of the first tokens.
        offsets: The slices of their characters.
        word_ids: The indices of their words.
    """

    def __init__(self, backend: tokenizers.Tokenizer, text: str, limit: int, *, with_offsets: bool) -> None:
        """Encode a text; keep at most `limit` tokens."""
        self.ids: list[int] = []
        self.offsets: list[tuple[int, int]] = []
        self.word_ids: list[int | None] = []
        self._num_tokens = num_words = 0
        for start, piece in _pieces(text):
            (encoding,) = _encode_batch(backend, [piece], with_offsets=with_offsets)
            self._num_tokens += len(encoding)
            num_kept = min(len(encoding), limit - len(self.ids))
            self.ids += encoding.ids[:num_kept]
            if with_offsets and num_kept:
                self.offsets += [(start + a, start + b) for a, b in encoding.offsets[:num_kept]]
                words = encoding.word_ids[:num_kept]
                self.word_ids += [None if word is None else num_words + word for word in words]
                num_words += 1 + max((word for word in words if word is not None), default=-1)

    def __len__(self) -> int:
        """Return the number of tokens of the whole text."""
        return self._num_tokens


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text with their starts."""
    start = 0
    while start < len(text):
        stop = start + PIECE_SIZE
        space = text.rfind(" ", start + 1, stop)
        while space > start and not (text[space - 1].isalnum() and text[space + 1 : space + 2].isalnum()):
            space = text.rfind(" ", start + 1, space)
        if stop < len(text) and space > start:
            stop = space
        yield start, text[start:stop]
        start = stop


def encode_texts(
    backend: tokenizers.Tokenizer, texts: Sequence[str], limit: int, *, with_offsets: bool
) -> list[Any]:
    """Return an encoding without special tokens per text, of a long text at least the first `limit` tokens.

    Raises:
        InputError: A text is not a string, or not valid Unicode.
    """
    texts = list(validate_texts(texts))
    short_texts = [text if len(text) <= PIECE_SIZE else "" for text in texts]
    encodings = _encode_batch(backend, short_texts, with_offsets=with_offsets)
    for i, text in enumerate(texts):
        if len(text) > PIECE_SIZE:
            encodings[i] = PiecewiseEncoding(backend, text, limit, with_offsets=with_offsets)
    return encodings


def _encode_batch(backend: tokenizers.Tokenizer, texts: list[str], *, with_offsets: bool) -> list[Any]:
    encode = backend.encode_batch if with_offsets else backend.encode_batch_fast
    return list(encode(texts, add_special_tokens=False))


def validate_texts(texts: Iterable[Any]) -> Iterator[str]:
    """Yield the texts; raise an `InputError` with the number (from 1) of the first that is not a text."""
    for number, text in enumerate(texts, start=1):
        yield to_text(text, "text", f"text {number}")


def check_expansion(normalizer: Mapping[str, Any], location: object) -> None:
    """Raise InputError for a normalizer whose replacements could make a text very much longer."""
    if _expansion(normalizer) > _MAX_EXPANSION:
        message = "the normalizer could make a text very much longer"
        raise InputError("normalizer_too_long", message, location=location, hint="use another tokenizer")


def _expansion(normalizer: Mapping[str, Any]) -> int:
    if parts := normalizer.get("normalizers"):
        return math.prod(map(_expansion, parts))
    return max(1, len(normalizer.get("content") or normalizer.get("prepend") or ""))
