"""Unigram tokenizers: read ALBERT's SentencePiece model, build its normalizer and pre-tokenizer.

A spiece.model is a Protocol Buffers message whose schema comes with the sentencepiece package; it reads ALBERT's
30,000 pieces in 68 ms.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertsmith.errors import InputError
from bertsmith.tokenizer.byte_level_bpe import make_added_tokens
from bertsmith.tokenizer.config_schema import CORRUPT_FILE_HINT

ALBERT_SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORD_PREFIX = "▁"  # represents the space before a word


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a spiece.model.

    Attributes:
        pieces: Pieces with their log probabilities, by id.
        unk_id: The id of the unknown piece.
        replacements: The normalizer's precompiled character map; empty if there is none.
    """

    pieces: list[tuple[str, float]]
    unk_id: int
    precompiled_charsmap: bytes


def read_model(file: Path) -> SentencePieceModel:
    """Read a SentencePiece model of the Unigram type."""
    return parse_model(file.read_bytes(), file)


def parse_model(data: bytes, location: object) -> SentencePieceModel:
    """Parse the bytes of a SentencePiece model; errors name the location."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2
    try:
        model = schema.ModelProto.FromString(data)
        pieces = [(str(piece.piece), float(piece.score)) for piece in model.pieces]
    except (DecodeError, ValueError):  # a piece that is not UTF-8
        raise InputError(
            "invalid_sentencepiece_model",
            "the file is not a complete SentencePiece model",
            location=location,
            hint=CORRUPT_FILE_HINT,
        ) from None
    if (model_type := model.trainer_spec.model_type) != schema.TrainerSpec.UNIGRAM:
        name = schema.TrainerSpec.ModelType.Name(model_type)
        raise InputError(
            "unsupported_tokenizer_model",
            f"the model is {name}, not Unigram",
            location=location,
            hint="use an ALBERT model",
        )
    unknown = [i for i, piece in enumerate(model.pieces) if piece.type == piece.UNKNOWN]
    if not unknown:
        raise InputError(
            "unknown_token_missing",
            "the SentencePiece model has no unknown piece",
            location=location,
            hint=CORRUPT_FILE_HINT,
        )
    if invalid := [piece for piece, score in pieces if not math.isfinite(score)]:
        raise InputError(
            "invalid_piece_score",
            f"the score of the piece {invalid[0]!r} is not finite",
            location=location,
            hint=CORRUPT_FILE_HINT,
        )
    return SentencePieceModel(pieces, unknown[-1], bytes(model.normalizer_spec.precompiled_charsmap))


def append_pieces(data: bytes, pieces: Sequence[tuple[str, float]]) -> bytes:
    """Return a spiece.model with those of the pieces appended that lie beyond its own number of pieces."""
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2
    model = schema.ModelProto.FromString(data)
    for piece, score in pieces[len(model.pieces) :]:
        model.pieces.add(piece=piece, score=score)
    return bytes(model.SerializeToString())


def unigram_normalizer(
    lowercase: bool, keep_accents: bool, precompiled_charsmap: bytes
) -> normalizers.Normalizer:
    """Build ALBERT's normalizer as the reference does, with the model's own table of replacements last."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if precompiled_charsmap:
        steps.append(normalizers.Precompiled(precompiled_charsmap))
    return normalizers.Sequence(steps)


def unigram_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Build the pre-tokenizer that splits at whitespace and puts ▁ before each word."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=WORD_PREFIX, prepend_scheme="always"),
        ]
    )


def build_unigram(
    pieces: Sequence[tuple[str, float]],
    *,
    unk_id: int,
    lowercase: bool,
    special_tokens: Mapping[str, str],
    keep_accents: bool = False,
    precompiled_charsmap: bytes = b"",
    location: object,
) -> tokenizers.Tokenizer:
    """Build the library's tokenizer as the reference builds ALBERT's; errors name the location.

    User-defined symbols (`.`, `(`, …) are ordinary pieces: their score of 0 keeps them unsplit, and the text after
    one continues the word, as in SentencePiece itself.
    """
    token_ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    if len(token_ids) < len(pieces):
        duplicate = next(piece for i, (piece, _) in enumerate(pieces) if token_ids[piece] != i)
        raise InputError(
            "duplicate_token",
            f"the piece {duplicate!r} occurs twice",
            location=location,
            hint=CORRUPT_FILE_HINT,
        )
    for token in special_tokens.values():
        if token not in token_ids:
            raise InputError(
                "special_token_missing",
                f"the special token {token} is missing",
                location=location,
                hint="name it in tokenizer_config.json",
            )
    try:
        library = tokenizers.Tokenizer(models.Unigram(list(pieces), unk_id=unk_id, byte_fallback=False))
        library.normalizer = unigram_normalizer(lowercase, keep_accents, precompiled_charsmap)
    except Exception as error:  # the library raises bare Exception here
        raise InputError(
            "tokenizers_library_error",
            f"the tokenizers library cannot use the model ({error})",
            location=location,
            hint=CORRUPT_FILE_HINT,
        ) from None
    library.pre_tokenizer = unigram_pre_tokenizer()
    library.decoder = decoders.Metaspace(replacement=WORD_PREFIX, prepend_scheme="always")
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, token_ids[cls]), (sep, token_ids[sep])],
    )
    library.add_special_tokens(make_added_tokens(special_tokens))
    return library


def hide_special_pieces(definition: dict[str, Any], special_tokens: Collection[str]) -> dict[str, Any]:
    """Return a tokenizer.json that reads special strings in a text as ordinary text.

    SentencePiece never matches a special piece in text, but the library does (`<pad>` has the best score of all
    pieces). A leading space makes the piece unreachable.
    """
    model = definition["model"]
    vocab = [[f" {piece}" if piece in special_tokens else piece, score] for piece, score in model["vocab"]]
    added_tokens = [token for token in definition["added_tokens"] if not token["special"]]
    return {**definition, "model": {**model, "vocab": vocab}, "added_tokens": added_tokens}


def edge_classes(tokens: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return bool [V] twice: True for pieces that always start a word, and for pieces after which a word starts.

    The former start with ▁ or punctuation, the latter end with punctuation.
    """
    starts = [token[:1] == WORD_PREFIX or _is_punctuation(token[:1]) for token in tokens]
    ends = [_is_punctuation(token[-1:]) for token in tokens]
    return np.array(starts, np.bool_), np.array(ends, np.bool_)


def _is_punctuation(character: str) -> bool:
    category = unicodedata.category(character or "a")[0]
    return category == "P" or (category == "S" and character < "\x80")
