"""The tokenizer: encodes texts as token ids, segment ids, and offsets, in Hugging Face's file formats.

The tokenizers library is the backend: it normalizes texts and splits them into tokens. `post_processor.py` adds
special tokens and truncates. A special string in a user's text (`[MASK]`, `</s>`) stays text unless the caller
asks to parse it: a review that mentions `[SEP]` must not change the structure of the input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.tokenizer import byte_level_bpe, unigram, wordpiece
from bertsmith.tokenizer.folder import (
    TokenizerKind,
    TokenizerSource,
    build_backend,
    library_errors,
    lowercases,
    read_folder,
    tokenizer_kind,
    write_folder,
)
from bertsmith.tokenizer.long_texts import encode_texts
from bertsmith.tokenizer.long_texts import validate_texts as validate_texts
from bertsmith.tokenizer.post_processor import Encoding as Encoding
from bertsmith.tokenizer.post_processor import PostProcessor
from bertsmith.tokenizer.post_processor import Truncation as Truncation
from bertsmith.tokenizer.wordpiece import BERT_SPECIAL_TOKENS, NormalizerName

SpecialStrings = Literal["text", "mask", "parse"]


class Tokenizer:
    """A WordPiece, byte-level BPE, or Unigram tokenizer.

    It is immutable, safe to share between threads, and cheap to send to other processes. Create one with
    `Tokenizer.load`, `Tokenizer.from_vocabulary`, or `train_tokenizer`. Shapes below use V for the vocabulary
    size.

    Attributes:
        definition: The text of the tokenizer.json.
        kind: The algorithm that splits words into pieces.
        lowercase: True if the tokenizer lower-cases text.
        continuation_prefix: The prefix of WordPieces that continue a word, usually `##`; empty for other kinds.
        max_length: Maximum number of tokens of an input, including special tokens.
        all_special_ids: Ids of the special tokens with a role, and of all others that the files declare special.
        num_separators: Number of special tokens between two texts: BERT 1, RoBERTa 2; 0 if the tokenizer lacks the
            template of pre-trained encoders (`[CLS]` before the first text, `[SEP]` after each), as GPT-2's does.
        uses_segments: True if the second text of a pair has segment id 1, as in BERT; in RoBERTa it has 0.
    """

    def __init__(
        self,
        definition: str,
        max_length: int,
        special_tokens: dict[str, str],
        sentencepiece_model: bytes | None = None,
    ) -> None:
        """Create a tokenizer from a tokenizer.json.

        Args:
            definition: The text of the tokenizer.json.
            max_length: Maximum number of tokens of an input.
            special_tokens: Special tokens by role (pad, unk, cls, sep, mask), as far as they exist.
            sentencepiece_model: The bytes of the spiece.model that it was built from, which `save` writes too.
        """
        self._source = TokenizerSource(definition, max_length, special_tokens, sentencepiece_model)
        self.definition, self.max_length = definition, max_length
        self._location = "tokenizer"  # in errors
        content = json.loads(definition)
        self.kind: TokenizerKind = tokenizer_kind(content)
        self.lowercase = lowercases(content)
        self.continuation_prefix = str(content["model"].get("continuing_subword_prefix") or "")
        # A backend's `encode_special_tokens` decides if special strings are text or parsed. Each mode has a
        # backend, in which it never changes, so that several threads can encode in different modes.
        self._text_backend = build_backend(self._source, self.kind)
        self._special_ids: dict[str, int] = {
            role: self._full_backend.token_to_id(token)  # type: ignore[misc]
            for role, token in special_tokens.items()
        }
        declared_ids = (int(token["id"]) for token in content["added_tokens"] if token["special"])
        self.all_special_ids = frozenset([*self._special_ids.values(), *declared_ids])
        self._post_processor = PostProcessor.from_definition(content)
        self.num_separators = self._post_processor.num_separators(
            self._special_ids.get("cls", -1), self._special_ids.get("sep", -1)
        )
        self.uses_segments = self._post_processor.uses_segments

    @classmethod
    def load(
        cls, path: str | Path, *, lowercase: bool | None = None, normalizer: NormalizerName | None = None
    ) -> Tokenizer:
        """Load a tokenizer from a folder or a file.

        Args:
            path: A folder with tokenizer.json, vocab.txt, vocab.json and merges.txt, or spiece.model (the first of
                these, with tokenizer_config.json if it exists), or one of these files.
            lowercase: Lower-case text; applies to a vocab.txt or spiece.model, which does not state it. Default:
                the configuration's `do_lower_case`, or else True.
            normalizer: The variant of BERT's normalizer, "hf" or "google"; applies to a vocab.txt. Default: the
                configuration's, or else "hf".

        Raises:
            InputError: The path is not a valid tokenizer; the error names the file.
        """
        tokenizer = cls(*read_folder(Path(path), lowercase, normalizer))
        tokenizer._location = str(path)
        return tokenizer

    @classmethod
    def from_vocabulary(
        cls,
        tokens: Sequence[str],
        *,
        lowercase: bool,
        max_length: int = 512,
        normalizer: NormalizerName = "hf",
    ) -> Tokenizer:
        """Build a BERT tokenizer from a vocabulary.

        Args:
            tokens: Tokens by id; [PAD], [UNK], [CLS], [SEP], and [MASK] must be among them.
            lowercase: Lower-case text and strip accents.
            max_length: Maximum number of tokens of an input.
            normalizer: The variant of BERT's normalizer.
        """
        special_tokens = dict(BERT_SPECIAL_TOKENS)
        backend = wordpiece.build_wordpiece(
            tokens, lowercase=lowercase, special_tokens=special_tokens, normalizer=normalizer
        )
        return cls(backend.to_str(), max_length, special_tokens)

    def with_end_tokens(self) -> Tokenizer:
        """Return a tokenizer that has its end token before, between, and after texts.

        GPT is fine-tuned with start, delimiter, and extract tokens (Radford et al. 2018, section 3.3), and the
        vocabulary of GPT-2 has none but its end token. A tokenizer with a template, or without an end token, is
        returned as it is.
        """
        if self._post_processor != PostProcessor() or self.end_token_id is None:
            return self
        definition = byte_level_bpe.with_end_tokens(self.definition, self.tokens[self.end_token_id])
        return Tokenizer(definition, self.max_length, self._source.special_tokens)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json, and the vocabulary files of the kind, each atomically."""
        write_folder(Path(folder), self._source, self.tokens)

    def __len__(self) -> int:
        """Return the vocabulary size."""
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size:,} entries)"

    @overload
    def __call__(self, text: str, text_pair: str | None = None, **options: Any) -> Encoding: ...

    @overload
    def __call__(
        self, text: Sequence[str], text_pair: Sequence[str] | None = None, **options: Any
    ) -> list[Encoding]: ...

    def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> Encoding | list[Encoding]:
        """Encode a text (or a pair of texts) like `encode`, or a list of texts like `encode_batch`.

        Args:
            text: A text or a list of texts.
            text_pair: The second text of a pair, or a list of them.
            options: Keyword arguments of `encode` or `encode_batch`.
        """
        if isinstance(text, str):
            return self.encode(text, text_pair, **options)
        return self.encode_batch(text, text_pair, **options)

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        special_strings: SpecialStrings = "text",
    ) -> Encoding:
        """Encode a text as `[CLS] text [SEP]`, or a pair of texts as `[CLS] text [SEP] text_pair [SEP]`.

        The second text and the `[SEP]` after it have segment id 1. This is BERT's template; other tokenizers have
        their own.

        Args:
            text: The text.
            text_pair: The second text of a pair.
            max_length: Maximum number of tokens, including special tokens; default: the tokenizer's `max_length`.
            truncation: The text to truncate at its end: "longest_first" (the longer one, as in tokenizers),
                "only_first", "only_second", or "none", which raises an error for an input that is too long.
            special_strings: Special strings to parse in the texts: none ("text"), only the mask token ("mask"), or
                all ("parse").

        Raises:
            InputError: The input is too long, or the limit removes all of a text.
        """
        return self.encode_batch(
            [text],
            None if text_pair is None else [text_pair],
            max_length=max_length,
            truncation=truncation,
            special_strings=special_strings,
        )[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        special_strings: SpecialStrings = "text",
        with_offsets: bool = True,
    ) -> list[Encoding]:
        """Encode each text, or each pair of texts, on all cores.

        Args:
            texts: The texts.
            text_pairs: The second text of each pair.
            max_length: See `encode`.
            truncation: See `encode`.
            special_strings: See `encode`.
            with_offsets: Return `offsets` and `word_ids`; without them, encoding takes half the time.

        Returns:
            One encoding per text.
        """
        if special_strings == "text":
            backend = self._text_backend
        else:
            backend = self._mask_backend if special_strings == "mask" else self._parse_backend
        batches = [texts] if text_pairs is None else [texts, text_pairs]
        limit = self.max_length if max_length is None else max_length
        with library_errors(self._location):
            encoded = [encode_texts(backend, batch, limit, with_offsets=with_offsets) for batch in batches]
        return [
            self._post_processor.process(row, limit, truncation, self.tokens, with_offsets=with_offsets)
            for row in zip(*encoded, strict=True)
        ]

    def encode_tokens(
        self, ids: Sequence[int], *, max_length: int | None = None, truncation: Truncation = "longest_first"
    ) -> Encoding:
        """Encode the ids of a text's tokens, with or without the special tokens around them."""
        text = self._post_processor.strip(ids, len(self))
        limit = self.max_length if max_length is None else max_length
        return self._post_processor.process([text], limit, truncation, self.tokens, with_offsets=False)

    def encode_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text without special tokens or truncation; the fast path for corpora."""
        with library_errors(self._location):
            return [
                e.ids for e in self._text_backend.encode_batch_fast(list(texts), add_special_tokens=False)
            ]

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a text that goes on: the special tokens before it, and its tokens.

        A text without any has the end token of a vocabulary without a template, such as GPT-2's.
        """
        before, _ = self._post_processor.special_ids_around
        (ids,) = self.encode_ids([text])
        end = [] if self.end_token_id is None else [self.end_token_id]
        return [*before, *ids] or end

    @property
    def end_token_id(self) -> int | None:
        """Return the id of the token after a text, `[SEP]`, `</s>`, or `<|endoftext|>`; None if there is none."""
        _, after = self._post_processor.special_ids_around
        if after:
            return after[0]
        end = byte_level_bpe.GPT2_SPECIAL_TOKENS["unk"]
        return self.tokens.index(end) if end in self._source.special_tokens.values() else None

    def decode(self, ids: Iterable[int], *, keep_special_tokens: bool = False) -> str:
        """Return the text of ids: joined pieces, without spaces before punctuation and in contractions.

        Args:
            ids: Token ids.
            keep_special_tokens: Keep special tokens.
        """
        skip = not keep_special_tokens
        text = str(self._full_backend.decode([int(i) for i in ids], skip_special_tokens=skip))
        return wordpiece.join_contractions(text) if self.kind == "wordpiece" else text

    def encode_bytes(self, data: bytes) -> list[int]:
        """Return the ids of bytes, UTF-8 or not, without special tokens; for byte-level BPE only."""
        return byte_level_bpe.encode_bytes(self._text_backend, data)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, the inverse of `encode_bytes`; for byte-level BPE only."""
        return byte_level_bpe.decode_bytes(self._text_backend, (self.tokens[i] for i in ids))

    def normalize(self, text: str) -> str:
        """Return a text as the model of the tokenizer reads it, such as in lower case."""
        normalizer = self._text_backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    @cached_property
    def tokens(self) -> list[str]:
        """Return the tokens by id, V strings."""
        token_ids = self._full_backend.get_vocab(with_added_tokens=True)
        return sorted(token_ids, key=token_ids.__getitem__)

    @property
    def pad_token_id(self) -> int:
        """Return the padding token's id; like the four ids below, an `InputError` if there is no such token."""
        return self._special_id("pad")

    @property
    def unk_token_id(self) -> int:
        """Return the unknown token's id; byte-level tokenizers never produce it."""
        return self._special_id("unk")

    @property
    def cls_token_id(self) -> int:
        """Return the id of the token before the first text."""
        return self._special_id("cls")

    @property
    def sep_token_id(self) -> int:
        """Return the id of the token after each text."""
        return self._special_id("sep")

    @property
    def mask_token_id(self) -> int:
        """Return the mask token's id."""
        return self._special_id("mask")

    def word_starts(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mark the tokens of a sequence that start a word; a special token always does.

        WordPiece: tokens that do not start with the continuation prefix `##`. Unigram: tokens that start with ▁ or
        punctuation, and tokens after punctuation. Byte-level BPE: tokens that start with Ġ, and tokens whose first
        character has another class (letter, number, other, space) than the last character before it, as in GPT-2's
        pattern, but no token that starts within a character's bytes.

        Args:
            ids: Token ids of N successive tokens, int [N].

        Returns:
            True for tokens that start a word, bool [N].
        """
        return self._word_start_function(np.asarray(ids, dtype=np.int64))

    @cached_property
    def _word_start_function(self) -> Callable[[NDArray[np.int64]], NDArray[np.bool_]]:
        special_ids = sorted(self.all_special_ids)
        if self.kind == "wordpiece":
            return wordpiece.word_start_function(self.tokens, special_ids, self.continuation_prefix)
        if self.kind == "unigram":
            return unigram.word_start_function(self.tokens, special_ids)
        return byte_level_bpe.word_start_function(self.tokens, special_ids)

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of everything that determines ids: vocabulary, normalizer, special tokens, …"""
        content = json.loads(self.definition)
        model = {key: value for key, value in content["model"].items() if key != "vocab"}
        parts = [self.tokens, sorted(self.all_special_ids), model]
        parts += [content["normalizer"], content["pre_tokenizer"]]
        if self.kind != "wordpiece":
            parts += [self.num_separators, self.uses_segments, content["added_tokens"]]
        if self.kind == "unigram":
            # The backend's parser may change the last bit of a score.
            parts.append([round(score, 6) for _, score in content["model"]["vocab"]])
        text = json.dumps([*parts, self._source.special_tokens], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def info(self) -> dict[str, Any]:
        """Return the tokenizer's properties as plain JSON values."""
        return {
            "algorithm": self.kind,
            "vocab_size": self.vocab_size,
            "lowercase": self.lowercase,
            "specials": {
                role: {"token": token, "id": self._special_ids[role]}
                for role, token in self._source.special_tokens.items()
            },
            "uses_segments": self.uses_segments,
            "max_length": self.max_length,
            "digest": self.digest,
        }

    @property
    def vocab_size(self) -> int:
        """Return V, the number of tokens, including special tokens."""
        return len(self.tokens)

    @property
    def mask_token(self) -> str:
        """Return the mask token, which `encode` parses with special_strings="mask"; BERT: `[MASK]`."""
        return self.tokens[self.mask_token_id]

    @cached_property
    def _parse_backend(self) -> tokenizers.Tokenizer:
        """Return a backend that parses all special tokens in texts."""
        return tokenizers.Tokenizer.from_str(self.definition)

    @cached_property
    def _mask_backend(self) -> tokenizers.Tokenizer:
        """Return a backend that parses only the mask token in texts, if there is one."""
        if self._special_ids.get("mask") is None:
            return self._text_backend
        return build_backend(self._source, self.kind, [self.mask_token])

    @property
    def _full_backend(self) -> tokenizers.Tokenizer:
        """Return a backend that has all tokens under their own names, which `hide_special_pieces` changes."""
        return self._parse_backend if self.kind == "unigram" else self._text_backend

    def _special_id(self, role: str) -> int:
        if self._special_ids.get(role) is None:
            message = f"this vocabulary has no {role} token, which BERT's inputs need"
            hint = "use a tokenizer with the special tokens of BERT, RoBERTa, or ALBERT, or train one"
            raise InputError("special_token_undefined", message, hint=hint)
        return self._special_ids[role]

    def __reduce__(self) -> tuple[type[Tokenizer], TokenizerSource]:
        # Pickling a backend would lose `encode_special_tokens`.
        return Tokenizer, self._source
