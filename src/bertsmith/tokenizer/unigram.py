"""Unigram (SentencePiece), the tokenizer of ALBERT: read and extend spiece.model, build the tokenizer.

A spiece.model is a Protocol Buffers message, whose schema comes with the sentencepiece package.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertsmith.errors import InputError, corrupt_file_error
from bertsmith.tokenizer.byte_level_bpe import make_added_tokens

ALBERT_SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORD_PREFIX = "▁"  # represents the space before a word


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a spiece.model.

    Attributes:
        pieces: Pieces with their log probabilities, by id.
        unk_id: The id of the unknown piece.
        precompiled_charsmap: The normalizer's replacements of characters; empty if there are none.
    """

    pieces: list[tuple[str, float]]
    unk_id: int
    precompiled_charsmap: bytes


def parse_model(data: bytes, location: object = "vocabulary") -> SentencePieceModel:
    """Parse the bytes of a SentencePiece model of the Unigram type; errors name the location."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2
    try:
        model = schema.ModelProto.FromString(data)
        pieces = [(str(piece.piece), float(piece.score)) for piece in model.pieces]
    except (DecodeError, ValueError):  # a piece that is not UTF-8
        raise corrupt_file_error(
            "invalid_sentencepiece_model", "the file is not a complete SentencePiece model", location=location
        ) from None
    if (model_type := model.trainer_spec.model_type) != schema.TrainerSpec.UNIGRAM:
        name = schema.TrainerSpec.ModelType.Name(model_type)
        message = f"the model is {name}, not Unigram"
        hint = "use an ALBERT model"
        raise InputError("unsupported_tokenizer_model", message, location=location, hint=hint)
    unknown = [i for i, piece in enumerate(model.pieces) if piece.type == piece.UNKNOWN]
    if not unknown:
        raise corrupt_file_error(
            "unknown_token_missing", "the SentencePiece model has no unknown piece", location=location
        )
    if invalid := [piece for piece, score in pieces if not math.isfinite(score)]:
        raise corrupt_file_error(
            "invalid_piece_score", f"the score of the piece {invalid[0]!r} is not finite", location=location
        )
    return SentencePieceModel(pieces, unknown[-1], bytes(model.normalizer_spec.precompiled_charsmap))


def append_pieces(data: bytes, pieces: Sequence[tuple[str, float]]) -> bytes:
    """Return a spiece.model extended to a list of pieces, of which it contains the first ones already."""
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2
    model = schema.ModelProto.FromString(data)
    for piece, score in pieces[len(model.pieces) :]:
        model.pieces.add(piece=piece, score=score)
    return bytes(model.SerializeToString())


def unigram_normalizer(
    lowercase: bool, keep_accents: bool, precompiled_charsmap: bytes
) -> normalizers.Normalizer:
    """Build ALBERT's normalizer as transformers does, with the model's own character map last."""
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
    model: SentencePieceModel,
    *,
    lowercase: bool,
    keep_accents: bool,
    special_tokens: Mapping[str, str],
    location: object = "vocabulary",
) -> tokenizers.Tokenizer:
    """Build a backend tokenizer as transformers builds ALBERT's.

    SentencePiece's user-defined symbols (`.`, `(`, …) are ordinary pieces here: their score of 0 keeps them
    unsplit, and the text after one continues the word, as in SentencePiece.

    Args:
        model: The content of the spiece.model.
        lowercase: Lower-case the text.
        keep_accents: Do not strip accents.
        special_tokens: Special tokens by role.
        location: The file that errors name.
    """
    token_ids = {piece: i for i, (piece, _) in enumerate(model.pieces)}
    if len(token_ids) < len(model.pieces):
        duplicate = next(piece for i, (piece, _) in enumerate(model.pieces) if token_ids[piece] != i)
        raise corrupt_file_error(
            "duplicate_token", f"the piece {duplicate!r} occurs twice", location=location
        )
    try:
        backend = tokenizers.Tokenizer(models.Unigram(model.pieces, unk_id=model.unk_id, byte_fallback=False))
        backend.normalizer = unigram_normalizer(lowercase, keep_accents, model.precompiled_charsmap)
    except Exception as error:  # The tokenizers library raises bare Exception here.
        message = f"the tokenizers library cannot use the model ({error})"
        raise corrupt_file_error("tokenizers_library_error", message, location=location) from None
    backend.pre_tokenizer = unigram_pre_tokenizer()
    backend.decoder = decoders.Metaspace(replacement=WORD_PREFIX, prepend_scheme="always")
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, token_ids[cls]), (sep, token_ids[sep])],
    )
    backend.add_special_tokens(make_added_tokens(special_tokens))
    return backend


def hide_special_pieces(definition: dict[str, Any], special_tokens: Collection[str]) -> dict[str, Any]:
    """Return a tokenizer.json in which these special tokens never match in a text.

    SentencePiece does not match special pieces in texts, but the tokenizers library does (the score of `<pad>`, 0,
    is the highest possible). A space before a piece makes it unreachable, since no pre-tokenized word has a space.
    """
    model = definition["model"]
    vocab = [[f" {piece}" if piece in special_tokens else piece, score] for piece, score in model["vocab"]]
    added_tokens = [token for token in definition["added_tokens"] if not token["special"]]
    return {**definition, "model": {**model, "vocab": vocab}, "added_tokens": added_tokens}


def word_start_function(
    tokens: Sequence[str], special_ids: Sequence[int]
) -> Callable[[NDArray[np.int64]], NDArray[np.bool_]]:
    """Return a function from ids [N] to bool [N], the tokens that start a word.

    A token that starts with ▁ or punctuation starts a word, and so does any token after one that ends with
    punctuation.
    """
    is_start = np.array(
        [token[:1] == WORD_PREFIX or _is_punctuation(token[:1]) for token in tokens], np.bool_
    )
    is_end = np.array([_is_punctuation(token[-1:]) for token in tokens], np.bool_)
    is_start[special_ids] = is_end[special_ids] = True

    def word_starts(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        starts: NDArray[np.bool_] = is_start[ids]
        starts[1:] |= is_end[ids[:-1]]
        starts[:1] = True
        return starts

    return word_starts


def _is_punctuation(character: str) -> bool:
    if not character:
        return False
    category = unicodedata.category(character)[0]
    return category == "P" or (category == "S" and character.isascii())
