"""Byte-level BPE, the tokenizer of GPT-2 and RoBERTa: read vocab.json and merges.txt, build it, find word starts.

Tokens are strings of 256 printable characters, each of which represents a byte (Ġ the space), so any text can be
encoded. V is the vocabulary size.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from bertsmith.errors import InputError, corrupt_file_error
from bertsmith.io.text_io import read_lines
from bertsmith.suggestions import not_found_error

ROBERTA_SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
# transformers gives GPT-2 an unknown token with this name, although no text is ever unknown.
GPT2_SPECIAL_TOKENS = {"unk": "<|endoftext|>"}
# Classes of characters, between which GPT-2's pattern (Radford et al. 2019) splits text. SPACE is U+0020,
# WHITESPACE all other whitespace. CONTINUATION stands for bytes that continue a character of an earlier piece.
_NOT_UTF8 = re.compile("([\udc80-\udcff])")
LETTER, NUMBER, OTHER, SPACE, WHITESPACE, CONTINUATION = range(6)


@cache
def byte_decoder() -> dict[str, int]:
    """Return the byte that each of the 256 characters represents, the inverse of GPT-2's `bytes_to_unicode`.

    Printable bytes represent themselves, others the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def encode_bytes(backend: tokenizers.Tokenizer, data: bytes) -> list[int]:
    """Return the ids of bytes without special tokens; a byte that is not UTF-8 becomes a token of its own.

    Raises:
        InputError: The backend is not byte-level BPE.
    """
    _check_byte_level(backend)
    character_of = {byte: character for character, byte in byte_decoder().items()}
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces: list[str] = []
    # Bytes that are not UTF-8 become lone surrogates, from U+DC80 on.
    for text in _NOT_UTF8.split(data.decode("utf-8", "surrogateescape")):
        if _NOT_UTF8.fullmatch(text):
            pieces.append(character_of[ord(text) - 0xDC00])
        else:
            pieces += [piece for piece, _ in split.pre_tokenize_str(text)]
    return [token.id for piece in pieces for token in backend.model.tokenize(piece)]


def decode_bytes(backend: tokenizers.Tokenizer, tokens: Iterable[str]) -> bytes:
    """Return the bytes of tokens, the inverse of `encode_bytes`, with the same errors."""
    _check_byte_level(backend)
    decoder = byte_decoder()
    return bytes(decoder[character] for token in tokens for character in token)


def _check_byte_level(backend: tokenizers.Tokenizer) -> None:
    if not isinstance(backend.model, models.BPE):
        message = "only byte-level BPE has a token for each byte"
        hint = "use encode and decode, or a tokenizer of RoBERTa's kind"
        raise InputError("tokenizer_not_byte_level", message, hint=hint)


def check_vocabulary(file: Path, vocabulary: Mapping[str, Any]) -> dict[str, int]:
    """Check that the ids of a vocab.json are 0 to V - 1 and that every byte has a piece; return its content."""
    for token, token_id in vocabulary.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise corrupt_file_error(
                "invalid_token_id", f"the id of {token!r} is {token_id!r}, not an integer", location=file
            )
    check_token_ids(vocabulary, file)
    check_byte_pieces(vocabulary, file)
    return dict(vocabulary)


def check_token_ids(vocabulary: Mapping[str, int], location: object) -> None:
    """Raise an `InputError` if the ids of a vocabulary of V tokens are not 0 to V - 1, each once."""
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        message = f"the ids are not 0 to {len(vocabulary) - 1}, each once"
        raise corrupt_file_error("token_ids_not_contiguous", message, location=location)


def check_byte_pieces(vocabulary: Mapping[str, int], file: Path) -> None:
    """Raise an `InputError` if a byte has no piece: texts would silently lose characters."""
    for character, byte in byte_decoder().items():
        if character not in vocabulary:
            message = f"the byte 0x{byte:02X} ({character!r}) has no piece"
            hint = "a byte-level vocabulary has a piece for each of the 256 bytes"
            raise InputError("byte_piece_missing", message, location=file, hint=hint)


def read_merges(file: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Read the pairs of a merges.txt, the earliest merge first; the first line may state a version."""
    if not file.is_file():
        raise not_found_error(file, hint="vocab.json needs merges.txt in the same folder")
    merges: list[tuple[str, str]] = []
    lines = list(read_lines(file))
    while lines and not lines[-1][1]:
        lines.pop()
    for line_number, line in lines:
        if line_number == 1 and line.startswith("#version"):
            continue
        location, parts = f"{file}:{line_number}", line.split(" ")
        if len(parts) != 2 or not all(parts):
            message = "a merge is two pieces with one space between them"
            raise corrupt_file_error("invalid_merge", message, location=location)
        for piece in (*parts, "".join(parts)):
            if piece not in vocabulary:
                message = f"the piece {piece!r} is not in vocab.json"
                raise corrupt_file_error("merge_not_in_vocabulary", message, location=location)
        merges.append((parts[0], parts[1]))
    return merges


def build_byte_level_bpe(
    vocabulary: Mapping[str, int],
    merges: Iterable[Sequence[str]],
    *,
    special_tokens: Mapping[str, str],
    add_prefix_space: bool = False,
) -> tokenizers.Tokenizer:
    """Build a backend tokenizer as transformers builds RoBERTa's, or GPT-2's if there are no cls and sep tokens.

    Args:
        vocabulary: The id of each token.
        merges: Pairs of tokens, the earliest merge first.
        special_tokens: Special tokens by role.
        add_prefix_space: Insert a space before a text that does not start with one.
    """
    model = models.BPE(
        vocab=dict(vocabulary),
        merges=[(first, second) for first, second in merges],
        continuing_subword_prefix="",
        end_of_word_suffix="",
        fuse_unk=False,
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    if "cls" in special_tokens and "sep" in special_tokens:
        cls, sep = special_tokens["cls"], special_tokens["sep"]
        backend.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]),
            (cls, vocabulary[cls]),
            trim_offsets=True,
            add_prefix_space=add_prefix_space,
        )
    backend.add_special_tokens(make_added_tokens(special_tokens))
    return backend


def make_added_tokens(special_tokens: Mapping[str, str]) -> list[AddedToken]:
    """Return special tokens with the flags of released models: the mask token includes the space before it."""
    return [
        AddedToken(token, lstrip=role == "mask", normalized=False) for role, token in special_tokens.items()
    ]


def with_end_tokens(definition: str, end: str) -> str:
    """Return a tokenizer.json whose template has the end token before, between, and after texts."""
    backend = tokenizers.Tokenizer.from_str(definition)
    template = processors.TemplateProcessing(
        single=f"{end} $A {end}",
        pair=f"{end} $A {end} $B {end}",
        special_tokens=[(end, backend.token_to_id(end))],
    )
    previous = backend.post_processor  # which trims offsets
    backend.post_processor = template if previous is None else processors.Sequence([previous, template])
    return str(backend.to_str())


def vocabulary_files(definition: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of vocab.json and merges.txt for a byte-level tokenizer.json."""
    model = definition["model"]
    token_ids = dict(model["vocab"])
    for token in definition.get("added_tokens", []):
        token_ids.setdefault(token["content"], token["id"])
    vocabulary = dict(sorted(token_ids.items(), key=lambda item: item[1]))
    merges = [" ".join(pair) for pair in model["merges"]]
    return {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False) + "\n",
        "merges.txt": "".join(f"{line}\n" for line in ["#version: 0.2", *merges]),
    }


def word_start_function(
    tokens: Sequence[str], special_ids: Sequence[int]
) -> Callable[[NDArray[np.int64]], NDArray[np.bool_]]:
    """Return a function from ids [N] to bool [N], the tokens at which GPT-2's pattern starts a word.

    The letters of a contraction ('s) that are a separate token are also marked; the pattern leaves them with the
    apostrophe. Special tokens and the tokens after them are marked, too.
    """
    first_classes, last_classes = np.array([_edge_classes(token) for token in tokens], np.int8).T.copy()
    is_special = np.zeros(len(tokens), np.bool_)
    is_special[special_ids] = True
    last_classes[is_special] = WHITESPACE

    def word_starts(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        first, last = first_classes[ids], last_classes[ids]
        # A token of continuation bytes alone ends a character of the last token before it that has other bytes.
        character_token = np.maximum.accumulate(np.where(last != CONTINUATION, np.arange(len(last)), 0))
        previous = np.concatenate([[np.int8(WHITESPACE)], last[character_token][:-1]])
        starts = (first == SPACE) | ((first != previous) & (first != CONTINUATION) & (previous != SPACE))
        starts[:1] = True
        marked: NDArray[np.bool_] = starts | is_special[ids]
        return marked

    return word_starts


def _edge_classes(token: str) -> tuple[int, int]:
    """Return the classes of a token's first and last character.

    The first is CONTINUATION if the token starts with bytes that continue a character of the token before; both
    are if it consists of such bytes.
    """
    decoder = byte_decoder()
    if not token or any(character not in decoder for character in token):
        return OTHER, OTHER
    data = bytes(decoder[character] for character in token)
    # In UTF-8, bytes of the form 10xxxxxx continue a character, and all others start one.
    lead_bytes = [i for i, byte in enumerate(data) if byte & 0xC0 != 0x80]
    if not lead_bytes:
        return CONTINUATION, CONTINUATION
    first = _character_class(data, 0) if lead_bytes[0] == 0 else CONTINUATION
    return first, _character_class(data, lead_bytes[-1])


def _character_class(data: bytes, start: int) -> int:
    """Return the class of the UTF-8 character that starts at this byte."""
    lead = data[start]
    length = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    try:
        character = data[start : start + length].decode("utf-8")
    except UnicodeDecodeError:
        # The next token has the rest of the character. Most that start with E2, or from F0 on, are symbols.
        return OTHER if lead == 0xE2 or lead >= 0xF0 else LETTER
    if character == " ":
        return SPACE
    if character.isspace():
        return WHITESPACE
    return {"L": LETTER, "N": NUMBER}.get(unicodedata.category(character)[0], OTHER)
