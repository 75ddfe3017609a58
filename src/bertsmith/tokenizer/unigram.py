"""Unigram tokenizers: ALBERT's SentencePiece model read, its normaliser built, its words found.

A spiece.model is a Protocol Buffers message, and the sentencepiece package brings its schema: ALBERT's 30,000
pieces are read in half the time (68 ms) that a reader of our own took.
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
from bertsmith.tokenizer.byte_level_bpe import added

ALBERT = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORD = "▁"  # stands for the blank before a word
_AGAIN = "take the file from its source again"


@dataclass(frozen=True)
class PieceModel:
    """What a spiece.model says: pieces with their log probabilities by id, the unknown's id, and the
    normaliser's table of replacements (empty where there is none)."""

    pieces: list[tuple[str, float]]
    unknown: int
    replacements: bytes


def read_model(file: Path) -> PieceModel:
    """Read a SentencePiece model of the Unigram type; `InputError` for any other, and for a torn file."""
    return parse_model(file.read_bytes(), str(file))


def parse_model(data: bytes, place: str) -> PieceModel:
    """`read_model` of a file's bytes; `place` begins what is wrong."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    kinds: Any = sentencepiece_model_pb2
    try:
        model = kinds.ModelProto.FromString(data)
        pieces = [(str(piece.piece), float(piece.score)) for piece in model.pieces]
    except (DecodeError, ValueError):  # a piece that is not UTF-8
        raise InputError(f"{place}: this is not a whole SentencePiece model", _AGAIN) from None
    if (kind := model.trainer_spec.model_type) != kinds.TrainerSpec.UNIGRAM:
        name = kinds.TrainerSpec.ModelType.Name(kind)
        raise InputError(f"{place}: its model is {name}, not Unigram", "give an ALBERT model")
    unknown = [i for i, piece in enumerate(model.pieces) if piece.type == piece.UNKNOWN]
    if not unknown:
        raise InputError(f"{place}: this SentencePiece model holds no pieces, or none for unknowns", _AGAIN)
    if strange := [piece for piece, score in pieces if not math.isfinite(score)]:
        raise InputError(f"{place}: the score of the piece {strange[0]!r} is not a number", _AGAIN)
    return PieceModel(pieces, unknown[-1], bytes(model.normalizer_spec.precompiled_charsmap))


def with_pieces(data: bytes, pieces: Sequence[tuple[str, float]]) -> bytes:
    """A spiece.model's bytes with the pieces that it has not yet, of all these, behind its own."""
    from sentencepiece import sentencepiece_model_pb2

    model: Any = sentencepiece_model_pb2
    whole = model.ModelProto.FromString(data)
    for piece, score in pieces[len(whole.pieces) :]:
        whole.pieces.add(piece=piece, score=score)
    return bytes(whole.SerializeToString())


def unigram_normalizer(lowercase: bool, keep_accents: bool, replacements: bytes) -> normalizers.Normalizer:
    """ALBERT's normaliser as the reference builds it, the model's own table of replacements last."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if replacements:
        steps.append(normalizers.Precompiled(replacements))
    return normalizers.Sequence(steps)


def unigram_borders() -> pre_tokenizers.PreTokenizer:
    """What cuts normalised text into words: blanks; each word then begins with ▁."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=WORD, prepend_scheme="always"),
        ]
    )


def unigram(
    pieces: Sequence[tuple[str, float]],
    *,
    unknown: int,
    lowercase: bool,
    specials: Mapping[str, str],
    keep_accents: bool = False,
    replacements: bytes = b"",
    place: str,
) -> tokenizers.Tokenizer:
    """The library's tokenizer as the reference builds ALBERT's; `place` begins what is wrong.

    Symbols that the model's maker defined (`.`, `(`, …) are pieces like others: their score of 0 keeps them
    whole, and what follows one goes on the word, as in SentencePiece itself.
    """
    numbers = {piece: i for i, (piece, _) in enumerate(pieces)}
    if len(numbers) < len(pieces):
        twice = next(piece for i, (piece, _) in enumerate(pieces) if numbers[piece] != i)
        raise InputError(f"{place}: the piece {twice!r} occurs twice", _AGAIN)
    for token in specials.values():
        if token not in numbers:
            raise InputError(
                f"{place}: the special token {token} is missing", "name it in tokenizer_config.json"
            )
    try:
        library = tokenizers.Tokenizer(models.Unigram(list(pieces), unk_id=unknown, byte_fallback=False))
        library.normalizer = unigram_normalizer(lowercase, keep_accents, replacements)
    except Exception as error:  # the library raises bare Exception here
        raise InputError(f"{place}: the tokenizers library cannot use it ({error})", _AGAIN) from None
    library.pre_tokenizer = unigram_borders()
    library.decoder = decoders.Metaspace(replacement=WORD, prepend_scheme="always")
    cls, sep = specials["cls"], specials["sep"]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, numbers[cls]), (sep, numbers[sep])],
    )
    library.add_special_tokens(added(specials))
    return library


def without_specials(definition: dict[str, Any], special: Collection[str]) -> dict[str, Any]:
    """A tokenizer.json in which no text reaches a special piece: SentencePiece never matches one in text, the
    library would (`<pad>` is a piece with the best score of all). A blank makes it unreachable."""
    model = definition["model"]
    vocab = [[f" {piece}" if piece in special else piece, score] for piece, score in model["vocab"]]
    kept = [token for token in definition["added_tokens"] if not token["special"]]
    return {**definition, "model": {**model, "vocab": vocab}, "added_tokens": kept}


def edge_classes(tokens: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """bool [V] twice: whether a piece begins a word wherever it stands (▁, punctuation), and whether the piece
    after it does (punctuation)."""
    begins = [token[:1] == WORD or _is_punctuation(token[:1]) for token in tokens]
    ends = [_is_punctuation(token[-1:]) for token in tokens]
    return np.array(begins, np.bool_), np.array(ends, np.bool_)


def _is_punctuation(character: str) -> bool:
    category = unicodedata.category(character or "a")[0]
    return category == "P" or (category == "S" and character < "\x80")
