"""Byte-level BPE: RoBERTa's and GPT-2's vocab.json and merges.txt, and where words begin among such pieces.

Each byte has a printable character that stands for it (a blank is Ġ), so every text has ids and none is unknown.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from bertsmith.errors import InputError
from bertsmith.io.files import read_lines
from bertsmith.suggestions import absent

ROBERTA = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
GPT2 = {"unk": "<|endoftext|>"}  # the reference's name for it; no piece of a text is ever unknown
_AGAIN = "take the file from its source again"
# Classes of the first and the last character of a piece, as GPT-2's pattern parts them.
LETTER, NUMBER, OTHER, BLANK, SPACE, INNER = range(6)


@cache
def byte_of() -> dict[str, int]:
    """The byte for which each of the 256 characters stands (Radford et al. 2019, section 2.2)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(hidden)}


def read_vocabulary(file: Path, whole: Mapping[str, Any]) -> dict[str, int]:
    """The object of a vocab.json, checked: ids are 0 to V - 1 each once, and every byte has a piece."""
    for token, number in whole.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise InputError(f"{file}: the id of {token!r} is {number!r}, not a whole number", _AGAIN)
    by_id = {number: token for token, number in whole.items()}
    for expected in range(len(whole)):
        if expected not in by_id:
            raise InputError(
                f"{file}: no token has the id {expected}; {len(whole)} tokens have the ids 0 to {len(whole) - 1}",
                _AGAIN,
            )
    require_bytes(whole, str(file))
    return dict(whole)


def require_bytes(vocabulary: Mapping[str, int], place: str) -> None:
    """Raise `InputError` where a byte has no piece: such texts would lose characters without a word."""
    for character, byte in byte_of().items():
        if character not in vocabulary:
            raise InputError(
                f"{place}: there is no piece for the byte 0x{byte:02X} ({character!r})",
                "a byte-level vocabulary has all 256",
            )


def read_merges(file: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges.txt in order; its first line may tell a version."""
    if not file.is_file():
        raise absent(file, remedy="vocab.json and merges.txt belong together")
    merges: list[tuple[str, str]] = []
    lines = list(read_lines(file))
    while lines and not lines[-1][1]:
        lines.pop()
    for number, line in lines:
        if number == 1 and line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise InputError(f"{file}:{number}: a merge is two pieces with a blank between them", _AGAIN)
        for piece in (*parts, "".join(parts)):
            if piece not in vocabulary:
                raise InputError(f"{file}:{number}: the piece {piece!r} is not in vocab.json", _AGAIN)
        merges.append((parts[0], parts[1]))
    return merges


def byte_level(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    specials: Mapping[str, str],
    add_prefix_space: bool = False,
) -> tokenizers.Tokenizer:
    """The library's tokenizer as the reference builds it: RoBERTa's frame where there are cls and sep."""
    model = models.BPE(
        vocab=dict(vocabulary),
        merges=list(merges),
        continuing_subword_prefix="",
        end_of_word_suffix="",
        fuse_unk=False,
    )
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.decoder = decoders.ByteLevel()
    if "cls" in specials and "sep" in specials:
        cls, sep = specials["cls"], specials["sep"]
        library.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), True, add_prefix_space
        )
    library.add_special_tokens(added(specials))
    return library


def added(specials: Mapping[str, str]) -> list[AddedToken]:
    """Special tokens for the library. The mask takes the blank before it, as in the released models."""
    return [AddedToken(token, lstrip=role == "mask", normalized=False) for role, token in specials.items()]


def files_of(definition: Mapping[str, Any]) -> dict[str, str]:
    """vocab.json and merges.txt of a byte-level tokenizer.json."""
    model = definition["model"]
    numbers = dict(model["vocab"])
    for token in definition.get("added_tokens", []):
        numbers.setdefault(token["content"], token["id"])
    vocabulary = dict(sorted(numbers.items(), key=lambda item: item[1]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False) + "\n",
        "merges.txt": "".join(f"{line}\n" for line in ["#version: 0.2", *merges]),
    }


def edge_classes(tokens: Sequence[str]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """int8 [V] twice: the class of each piece's first and last character, INNER where it begins (or consists)
    of the rest of a character that an earlier piece began."""
    pairs = [_edges(token) for token in tokens]
    return np.array([a for a, _ in pairs], np.int8), np.array([b for _, b in pairs], np.int8)


def word_starts(first: NDArray[np.int8], last: NDArray[np.int8]) -> NDArray[np.bool_]:
    """bool [N] from the classes of N pieces in a row: True where GPT-2's pattern begins a word, and at the letters
    of a contraction ('s) that are a piece of their own, which the pattern leaves with the apostrophe."""
    # A piece of inner bytes alone ends as the last piece before it did that was more than that.
    own = np.maximum.accumulate(np.where(last != INNER, np.arange(len(last)), 0))
    before = np.concatenate([[np.int8(SPACE)], last[own][:-1]])
    starts: NDArray[np.bool_] = (first == BLANK) | ((first != before) & (first != INNER) & (before != BLANK))
    starts[:1] = True
    return starts


def _edges(token: str) -> tuple[int, int]:
    numbers = byte_of()
    if not token or any(character not in numbers for character in token):
        return OTHER, OTHER
    data = bytes(numbers[character] for character in token)
    heads = [i for i, byte in enumerate(data) if byte & 0xC0 != 0x80]
    if not heads:
        return INNER, INNER
    first = _class(data, 0) if heads[0] == 0 else INNER
    return first, _class(data, heads[-1])


def _class(data: bytes, start: int) -> int:
    head = data[start]
    length = 1 if head < 0x80 else 2 if head < 0xE0 else 3 if head < 0xF0 else 4
    try:
        character = data[start : start + length].decode("utf-8")
    except UnicodeDecodeError:  # the rest stands in the next piece: most of E2 and F0 on are signs and emoji
        return OTHER if head == 0xE2 or head >= 0xF0 else LETTER
    if character == " ":
        return BLANK
    if character.isspace():
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(unicodedata.category(character)[0], OTHER)
