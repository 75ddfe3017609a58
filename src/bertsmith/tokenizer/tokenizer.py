"""Text becomes ids, segments and offsets; tokenizers are read from and written to the field's files.

The library encodes, `post_processor.py` puts the special tokens around it and counts what it cuts. A special string
in a user's text (`[MASK]`, `</s>`) stays text unless the caller asks to parse it: a review that mentions `[SEP]` must
not fold the input.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertsmith import notebook
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.tokenizer import byte_level_bpe, unigram
from bertsmith.tokenizer.folder import Kind, TokenizerSource, kind_of, lowercases, read_folder, write_folder
from bertsmith.tokenizer.normalizer import Normalizer
from bertsmith.tokenizer.post_processor import Encoding as Encoding
from bertsmith.tokenizer.post_processor import SequenceLayout
from bertsmith.tokenizer.post_processor import Truncation as Truncation
from bertsmith.tokenizer.wordpiece import SPECIALS, contracted, wordpiece

Specials = Literal["text", "mask", "parse"]


def _warned(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)


class Tokenizer:
    """A WordPiece, byte-level BPE or Unigram tokenizer; immutable, safe to share between threads, cheap to send
    to other processes.

    Made by `Tokenizer.load`, `Tokenizer.of_vocabulary` or `train_tokenizer`, not directly.
    """

    kind: Kind
    """The algorithm that cuts words into pieces."""
    separators: int
    """How many special tokens stand between two texts: BERT 1, RoBERTa 2; 0 where a text has not the frame that
    models are pre-trained with (`[CLS]` before the first, `[SEP]` after each): GPT-2's has none."""
    uses_segments: bool
    """Whether a second text has segment 1; RoBERTa's has 0."""

    def __init__(
        self, definition: str, max_length: int, specials: dict[str, str], piece_model: bytes | None = None
    ) -> None:
        """`definition`: text of a tokenizer.json; `specials`: from pad, unk, cls, sep, mask to tokens, those
        that there are; `piece_model`: the spiece.model it came from, which is saved beside it."""
        self._definition = definition
        self.max_length = max_length
        self._names = specials
        self._piece_model = piece_model
        whole = json.loads(definition)
        self.kind = kind_of(whole)
        # The library reads special strings, or not, by a switch on the object. An object for each way and no
        # flipping, so that calls from several threads cannot meet in the middle.
        self._plain = self._reading_specials(())
        self._ids: dict[str, int] = {r: self._whole.token_to_id(t) for r, t in specials.items()}  # type: ignore[misc]
        self._layout = SequenceLayout.of(whole, self._whole.get_vocab_size(), "tokenizer.json")
        self.separators = self._layout.separators(self._ids.get("cls", -1), self._ids.get("sep", -1))
        self.uses_segments = self._layout.uses_segments

    @classmethod
    def load(
        cls, path: str | Path, *, lowercase: bool | None = None, normalizer: Normalizer | None = None
    ) -> Tokenizer:
        """Read a folder (tokenizer.json, else vocab.txt, vocab.json with merges.txt, or spiece.model;
        tokenizer_config.json if there) or one of these files.

        A bare vocab.txt or spiece.model does not say whether it is lower-cased: `lowercase`, else the
        configuration's `do_lower_case`, else True; nor whose normaliser it had: `normalizer`, "hf" (else the
        configuration's, else this one) or "google". Raises `InputError` for what is no tokenizer, naming the
        file.
        """
        source = read_folder(Path(path), lowercase, normalizer)
        return cls(source.definition, source.max_length, source.specials, source.piece_model)

    @classmethod
    def of_vocabulary(
        cls, tokens: Sequence[str], *, lowercase: bool, max_length: int = 512, normalizer: Normalizer = "hf"
    ) -> Tokenizer:
        """A BERT tokenizer of a list id → token, which holds [PAD] [UNK] [CLS] [SEP] [MASK] somewhere."""
        specials = dict(SPECIALS)
        library = wordpiece(
            tokens, lowercase=lowercase, specials=specials, place="vocabulary", normalizer=normalizer
        )
        return cls(library.to_str(), max_length, specials)

    def save(self, folder: str | Path) -> None:
        """Write the kind's files (vocab.txt; vocab.json and merges.txt; the spiece.model it came from),
        tokenizer_config.json and tokenizer.json, each whole or not there."""
        source = TokenizerSource(self._definition, self.max_length, self._names, self._piece_model)
        write_folder(Path(folder), source, self.tokens)

    def __len__(self) -> int:
        """V, as `vocab_size`."""
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size:,} entries)"

    def _repr_html_(self) -> str:
        facts = {
            "kind": self.kind,
            "entries": self.vocab_size,
            "case": "lower-cased" if self.lowercase else "kept",
            "longest text": f"{self.max_length:,} tokens",
            "special tokens": " ".join(self._names.values()),
            "some entries": " ".join(self.tokens[:: max(1, self.vocab_size // 12)][1:11]),
        }
        return notebook.page("Tokenizer", facts)

    @overload
    def __call__(self, text: str, second: str | None = None, **how: Any) -> Encoding: ...

    @overload
    def __call__(
        self, text: Sequence[str], second: Sequence[str] | None = None, **how: Any
    ) -> list[Encoding]: ...

    def __call__(self, text: Any, second: Any = None, **how: Any) -> Encoding | list[Encoding]:
        """`encode` of a text (or a pair), whose Encoding has `ids`, `tokens`, `segments` and `offsets`; of a list
        of texts (and of second ones) a list of them, as `encode_many`. how: what that takes by name."""
        return (
            self.encode(text, second, **how)
            if isinstance(text, str)
            else self.encode_many(text, second, **how)
        )

    def encode(
        self,
        text: str,
        second: str | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        specials: Specials = "text",
        tell: Callable[[str], None] = _warned,
    ) -> Encoding:
        """`[CLS] text [SEP]`, or `[CLS] text [SEP] second [SEP]` with segment 1 from `second` on; other kinds as
        `post_processor.py` has it.

        specials: whether special strings in the texts stay "text", all but the "mask" do, or none ("parse"); tell
        (by default a warning) hears of texts that then begin or end with what is put around them anyway.
        At most `max_length` tokens with the specials (None: the tokenizer's own `max_length`). What is too
        long is cut at the end: of the longer text ("longest_first", the reference's shares), of one text,
        or of none, which raises `InputError` and tells both lengths.
        """
        seconds = None if second is None else [second]
        return self.encode_many(
            [text], seconds, max_length=max_length, truncation=truncation, specials=specials, tell=tell
        )[0]

    def encode_many(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        specials: Specials = "text",
        tell: Callable[[str], None] = _warned,
        located: bool = True,
    ) -> list[Encoding]:
        """`encode` for each text (with the second of the same place), on all cores. located: whether to say where
        in its text each token stands; without, it takes half the time, and `offsets` and `words` are empty."""
        library = (
            self._plain if specials == "text" else self._masking if specials == "mask" else self._parsing
        )
        limit = self.max_length if max_length is None else max_length
        firsts = _encoded(library, texts, located=located)
        if specials == "parse" and (said := self.told_of_doubled([*texts, *(seconds or ())])):
            tell(said)
        if seconds is None:
            return [
                self._layout.laid_out([first], limit, truncation, self.tokens, located=located)
                for first in firsts
            ]
        others = _encoded(library, seconds, located=located)
        return [
            self._layout.laid_out([first, other], limit, truncation, self.tokens, located=located)
            for first, other in zip(firsts, others, strict=True)
        ]

    def told_of_doubled(self, texts: Sequence[str]) -> str | None:
        """That some of the texts, where special strings in them are parsed, bring the special tokens that are put
        around each anyway; None where none does."""
        if not self.separators:
            return None
        first, last = self._names["cls"], self._names["sep"]
        number = sum(text.lstrip().startswith(first) or text.rstrip().endswith(last) for text in texts)
        if not number:
            return None
        return (
            f"{number:,} of {counted(len(texts), 'text')} begin with {first} or end with {last}, which are put "
            "around each text anyway, and so are there twice: take them out of the texts"
        )

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text without specials, offsets or limit: the fast way for corpora."""
        return [e.ids for e in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """The text of some ids: pieces joined, blanks before punctuation and in contractions gone; specials kept
        on request."""
        text = str(self._whole.decode([int(i) for i in ids], skip_special_tokens=not specials))
        return contracted(text) if self.kind == "wordpiece" else text

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens by id, V strings."""
        known = self._whole.get_vocab(with_added_tokens=True)
        return sorted(known, key=known.__getitem__)

    @property
    def pad_id(self) -> int:
        """The id that fills up rows. This and the four below raise `InputError` where there is no such token."""
        return self._id("pad")

    @property
    def unk_id(self) -> int:
        """The id of what has no pieces; no text of a byte-level tokenizer has it."""
        return self._id("unk")

    @property
    def cls_id(self) -> int:
        """The id before the first text."""
        return self._id("cls")

    @property
    def sep_id(self) -> int:
        """The id after each text."""
        return self._id("sep")

    @property
    def mask_id(self) -> int:
        """The id that stands for a gap."""
        return self._id("mask")

    def word_starts(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool [N]: which of N pieces in a row begin a word; a special token always does.

        WordPiece: what is not a continuation (`##`). Unigram: ▁, punctuation, and what follows punctuation.
        Byte-level BPE: Ġ, and what is of another class (letter, number, other, blank) than the end of the piece
        before, as GPT-2's pattern parts; bytes within a character never.
        """
        ids = np.asarray(ids, dtype=np.int64)
        if self.kind == "wordpiece":
            return ~self.continuation[ids]
        first, last, special = self._edges
        if self.kind == "unigram":
            starts = first[ids].astype(np.bool_)
            starts[1:] |= last[ids[:-1]].astype(np.bool_)
            starts[:1] = True
        else:
            starts = byte_level_bpe.word_starts(first[ids], last[ids])
        begins: NDArray[np.bool_] = starts | special[ids]
        return begins

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """bool [V]: the pieces that go on a word (`##ing`); of WordPiece alone, others have `word_starts`."""
        special, prefix = self.special_ids, self.prefix
        if not prefix:
            raise InputError(
                "this WordPiece vocabulary does not mark the pieces that continue a word, so words cannot be told",
                "mask tokens: data.masking=token",
            )
        marks = [token.startswith(prefix) and i not in special for i, token in enumerate(self.tokens)]
        return np.array(marks, dtype=np.bool_)

    @cached_property
    def prefix(self) -> str:
        """What marks a WordPiece that goes on a word, `##` but for odd vocabularies; of other kinds empty."""
        return str(json.loads(self._definition)["model"].get("continuing_subword_prefix") or "")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens by role, and of any other that the files call special."""
        added = json.loads(self._definition)["added_tokens"]
        return frozenset({*self._ids.values()} | {int(token["id"]) for token in added if token["special"]})

    @cached_property
    def lowercase(self) -> bool:
        """Whether the tokenizer lower-cases what it reads."""
        return lowercases(json.loads(self._definition))

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all that determines the ids: vocabulary, normaliser, word borders, specials."""
        whole = json.loads(self._definition)
        model = {key: value for key, value in whole["model"].items() if key != "vocab"}
        parts = [self.tokens, sorted(self.special_ids), model, whole["normalizer"], whole["pre_tokenizer"]]
        if self.kind != "wordpiece":
            parts += [self.separators, self.uses_segments, whole["added_tokens"]]
        if self.kind == "unigram":
            # The library's reader may be off by a score's last bit.
            parts.append([round(score, 6) for _, score in whole["model"]["vocab"]])
        text = json.dumps([*parts, self._names], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def info(self) -> dict[str, Any]:
        """What there is to say of the tokenizer: plain JSON."""
        return {
            "algorithm": self.kind,
            "vocab_size": self.vocab_size,
            "lowercase": self.lowercase,
            "specials": {
                role: {"token": token, "id": self._ids[role]} for role, token in self._names.items()
            },
            "uses_segments": self.uses_segments,
            "max_length": self.max_length,
            "digest": self.digest,
        }

    @property
    def definition(self) -> str:
        """The text of its tokenizer.json."""
        return self._definition

    @property
    def vocab_size(self) -> int:
        """V, the specials among them."""
        return len(self.tokens)

    @property
    def mask_token(self) -> str:
        """What stands for a gap in a text that is encoded with specials="mask"; BERT: `[MASK]`."""
        self._id("mask")
        return self._names["mask"]

    @cached_property
    def _parsing(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._definition)

    @cached_property
    def _masking(self) -> tokenizers.Tokenizer:
        return self._reading_specials((self.mask_token,))

    def _reading_specials(self, read: Sequence[str]) -> tokenizers.Tokenizer:
        """A library that finds the special tokens to `read` in texts, and takes all others for text."""
        if not read and self.kind != "unigram":  # as it is written; a vocabulary takes time to write again
            library = tokenizers.Tokenizer.from_str(self._definition)
            library.encode_special_tokens = True
            return library
        whole = json.loads(self._definition)
        for token in whole["added_tokens"]:
            token["special"] = token["special"] and token["content"] not in read  # others are always found
        if self.kind == "unigram":
            hidden = {token["content"] for token in whole["added_tokens"] if token["special"]}
            whole = unigram.without_specials(whole, (hidden | {*self._names.values()}) - {*read})
        library = tokenizers.Tokenizer.from_str(json.dumps(whole))
        library.encode_special_tokens = True
        return library

    @property
    def _whole(self) -> tokenizers.Tokenizer:
        """A library that knows all tokens by their names."""
        return self._parsing if self.kind == "unigram" else self._plain

    @cached_property
    def _edges(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        kind = byte_level_bpe if self.kind == "byte_level_bpe" else unigram
        first, last = kind.edge_classes(self.tokens)
        special = np.zeros(self.vocab_size, np.bool_)
        special[sorted(self.special_ids)] = True
        if self.kind == "byte_level_bpe":
            last[special] = byte_level_bpe.SPACE
        else:
            last[special] = True
        return first, last, special

    def _id(self, role: str) -> int:
        number = self._ids.get(role)
        if number is None:
            raise InputError(
                f"this vocabulary has no {role} token, so it cannot frame what a BERT reads",
                "take one of BERT's, RoBERTa's or ALBERT's layout, or train one",
            )
        return int(number)

    def __getstate__(self) -> tuple[str, int, dict[str, str], bytes | None]:
        # By hand: the library's own pickling forgets that special strings are text.
        return self._definition, self.max_length, self._names, self._piece_model

    def __setstate__(self, state: tuple[str, int, dict[str, str], bytes | None]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _encoded(library: tokenizers.Tokenizer, texts: Sequence[str], *, located: bool) -> list[Any]:
    encode = library.encode_batch if located else library.encode_batch_fast
    try:
        return list(encode(list(texts), add_special_tokens=False))
    except (TypeError, UnicodeEncodeError):  # the library takes what UTF-8 can hold
        for _ in whole_texts(texts):  # raises
            pass
        raise


def whole_texts(texts: Iterable[Any]) -> Iterator[str]:
    """The same texts. InputError with the number, from 1 on, of what is no text or holds half a character."""
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise InputError(f"text {number}: {text!r:.60} is not a string", "give each text as a string")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"text {number} holds half a character (a lone surrogate)", "fix it") from None
        yield text
