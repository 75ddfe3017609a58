"""Text becomes ids, segments and offsets; tokenizers are read from and written to the field's files.

The library encodes, this file lays out `[CLS] A [SEP] B [SEP]` and counts what it cuts. A special string
inside a user's text (`[MASK]`, `[SEP]`) stays text unless the caller asks to parse it: a review that
mentions `[SEP]` must not fold the input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.text.tokenizer_files import SPECIALS, lowercases, read_folder, wordpiece, write_folder

Truncation = Literal["longest_first", "only_first", "only_second", "none"]
Specials = Literal["text", "parse"]


@dataclass(frozen=True)
class Encoding:
    """One sequence of n tokens as a model takes it; every list has n entries.

    `offsets` are slices of each token's own text in characters, (0, 0) for a special; `sources` says which
    text (0 first, 1 second, None special); `words` numbers the words within a text, from 0 (None special).
    `cut` counts the tokens that truncation removed from the ends of the texts.
    """

    ids: list[int]
    segments: list[int]
    offsets: list[tuple[int, int]]
    sources: list[int | None]
    words: list[int | None]
    cut: int


class Tokenizer:
    """A WordPiece tokenizer; immutable, safe to share between threads, cheap to send to other processes.

    Made by `Tokenizer.load`, `Tokenizer.of_vocabulary` or `train_tokenizer`, not directly.
    """

    def __init__(self, definition: str, max_length: int, specials: dict[str, str]) -> None:
        """`definition`: text of a tokenizer.json; `specials`: from pad, unk, cls, sep, mask to tokens."""
        self._definition = definition
        self.max_length = max_length
        self._names = specials
        # The library reads special strings, or not, by a switch on the object. Two objects and no flipping,
        # so that calls from several threads cannot meet in the middle.
        self._plain = _library(definition, as_text=True)
        ids = [self._plain.token_to_id(specials[role]) for role in ("pad", "unk", "cls", "sep", "mask")]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = [int(i or 0) for i in ids]

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
        """Read a folder (tokenizer.json, else vocab.txt; tokenizer_config.json if there) or one of the two.

        A bare vocab.txt does not say whether it is lower-cased: `lowercase`, else the configuration's
        `do_lower_case`, else True. Raises `InputError` for what is no tokenizer, naming the file.
        """
        return cls(*read_folder(Path(path), lowercase))

    @classmethod
    def of_vocabulary(cls, tokens: Sequence[str], *, lowercase: bool, max_length: int = 512) -> Tokenizer:
        """A BERT tokenizer of a list id → token, which holds [PAD] [UNK] [CLS] [SEP] [MASK] somewhere."""
        specials = dict(SPECIALS)
        library = wordpiece(tokens, lowercase=lowercase, specials=specials, place="vocabulary")
        return cls(library.to_str(), max_length, specials)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, vocab.txt and tokenizer_config.json, each whole or not there."""
        write_folder(
            Path(folder),
            definition=self._definition,
            tokens=self.tokens,
            specials=self._names,
            max_length=self.max_length,
        )

    def encode(
        self,
        text: str,
        second: str | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        specials: Specials = "text",
    ) -> Encoding:
        """`[CLS] text [SEP]`, or `[CLS] text [SEP] second [SEP]` with segment 1 from `second` on.

        At most `max_length` tokens with the specials (None: the tokenizer's own `max_length`). What is too
        long is cut at the end: of the longer text ("longest_first", the reference's shares), of one text,
        or of none, which raises `InputError` and tells both lengths.
        """
        seconds = None if second is None else [second]
        return self.encode_many(
            [text], seconds, max_length=max_length, truncation=truncation, specials=specials
        )[0]

    def encode_many(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        specials: Specials = "text",
    ) -> list[Encoding]:
        """`encode` for each text (with the second of the same place), on all cores."""
        library = self._plain if specials == "text" else self._parsing
        limit = self.max_length if max_length is None else max_length
        firsts = _encoded(library, texts)
        if seconds is None:
            return [self._laid_out([first], limit, truncation) for first in firsts]
        others = _encoded(library, seconds)
        return [
            self._laid_out([first, other], limit, truncation)
            for first, other in zip(firsts, others, strict=True)
        ]

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text without specials, offsets or limit: the fast way for corpora."""
        return [e.ids for e in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """The text of some ids: pieces joined, blanks before punctuation gone; specials kept on request."""
        return str(self._plain.decode([int(i) for i in ids], skip_special_tokens=not specials))

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens by id, V strings."""
        known = self._plain.get_vocab(with_added_tokens=True)
        return sorted(known, key=known.__getitem__)

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """bool [V]: the pieces that go on a word (`##ing`)."""
        special = self.special_ids
        marks = [token.startswith("##") and i not in special for i, token in enumerate(self.tokens)]
        return np.array(marks, dtype=np.bool_)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of BERT's five special tokens, and of any other that the files call special."""
        added = json.loads(self._definition).get("added_tokens", [])
        named = {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}
        return frozenset(named | {int(token["id"]) for token in added if token["special"]})

    @cached_property
    def lowercase(self) -> bool:
        """Whether the tokenizer lower-cases what it reads."""
        return lowercases(self._definition)

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all that determines the ids: vocabulary, normaliser, word borders, specials."""
        whole = json.loads(self._definition)
        model = {key: value for key, value in whole["model"].items() if key != "vocab"}
        parts = [self.tokens, sorted(self.special_ids), model, whole["normalizer"], whole["pre_tokenizer"]]
        text = json.dumps([*parts, self._names], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    @property
    def vocab_size(self) -> int:
        """V, the specials among them."""
        return len(self.tokens)

    @property
    def mask_token(self) -> str:
        """What stands for a gap in a text that is encoded with specials="parse"; BERT: `[MASK]`."""
        return self._names["mask"]

    @cached_property
    def _parsing(self) -> tokenizers.Tokenizer:
        return _library(self._definition, as_text=False)

    def __getstate__(self) -> tuple[str, int, dict[str, str]]:
        # By hand: the library's own pickling forgets that special strings are text.
        return self._definition, self.max_length, self._names

    def __setstate__(self, state: tuple[str, int, dict[str, str]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _laid_out(self, parts: list[Any], limit: int, truncation: Truncation) -> Encoding:
        lengths = [len(part) for part in parts]
        kept = _kept(lengths, limit - 1 - len(parts), limit, truncation)
        ids: list[int] = [self.cls_id]
        segments: list[int] = [0]
        offsets: list[tuple[int, int]] = [(0, 0)]
        sources: list[int | None] = [None]
        words: list[int | None] = [None]
        for source, (part, n) in enumerate(zip(parts, kept, strict=True)):
            ids += [*part.ids[:n], self.sep_id]
            segments += [source] * (n + 1)
            offsets += [*part.offsets[:n], (0, 0)]
            sources += [*[source] * n, None]
            words += [*part.word_ids[:n], None]
        return Encoding(ids, segments, offsets, sources, words, sum(lengths) - sum(kept))


def _library(definition: str, *, as_text: bool) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_str(definition)
    library.encode_special_tokens = as_text
    return library


def _encoded(library: tokenizers.Tokenizer, texts: Sequence[str]) -> list[Any]:
    try:
        return list(library.encode_batch(list(texts), add_special_tokens=False))
    except (TypeError, UnicodeEncodeError):  # the library takes what UTF-8 can hold
        for number, text in enumerate(texts, start=1):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(
                    f"text {number} holds half a character (a lone surrogate)", "mend it"
                ) from None
        raise


def _kept(lengths: list[int], room: int, limit: int, truncation: Truncation) -> list[int]:
    """How many tokens of each text stay. "longest_first" leaves the shares that the reference leaves: the
    longer text gives until both are even; what both exceed is halved, the odd token going to the longer."""
    total = sum(lengths)
    if total <= room:
        return lengths
    if truncation == "none":
        needed = total + limit - room
        raise InputError(
            f"this text has {needed} tokens with the special ones, the limit is {limit}",
            "cut it, let it be truncated, or ask for windows",
        )
    if room < 0:
        raise InputError(f"a limit of {limit} tokens leaves no room for the special ones", "raise the limit")
    if len(lengths) == 1:
        if truncation == "only_second":
            raise InputError(f"there is no second text to cut down to {limit} tokens", "cut the first")
        return [room]
    if truncation != "longest_first":
        cut = 0 if truncation == "only_first" else 1
        left = room - lengths[1 - cut]
        if left < 0:
            which, long = ("second", "first")[cut], lengths[1 - cut]
            raise InputError(
                f"the {which} text alone has {long} tokens, with the specials more than the limit of {limit}",
                f"cut the {which} text too (longest_first), or raise the limit",
            )
        return [left, lengths[1]] if cut == 0 else [lengths[0], left]
    shorter, longer = sorted(lengths)
    if 2 * shorter <= room:
        longer = room - shorter
    else:
        shorter, longer = room // 2, room - room // 2
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]
