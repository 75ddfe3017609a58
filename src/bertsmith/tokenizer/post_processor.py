"""Add special tokens to tokenized texts by the template of a tokenizer.json's post-processor, and truncate.

BERT's template is `[CLS] A [SEP] B [SEP]`, RoBERTa's `<s> A </s></s> B </s>`, and GPT-2 has none. Other templates
are followed, with these limits: each text occurs once, type ids are 0 or 1, and a template without special tokens
becomes A B with type id 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize

Truncation = Literal["longest_first", "only_first", "only_second", "none"]

_MAX_REPR_TOKENS = 12
_unsupported_error = partial(InputError, hint="use a tokenizer whose post-processor takes one text or two")
_SEQUENCE_IDS = {"A": 0, "B": 1}  # names of the two texts in a TemplateProcessing
_TEXT_NAMES = ("first", "second")


@dataclass(frozen=True)
class Encoding:
    """A sequence of n tokens, the input of a model.

    Attributes:
        num_truncated: Number of tokens that truncation removed.
        vocabulary: All tokens by id.
        ids: Token ids, n integers.
        type_ids: Segment ids (token type ids), 0 or 1, n integers.
        offsets: Character ranges (start, end) in each token's own text, (0, 0) for special tokens; empty if the
            tokenizer was called without offsets.
        sequence_ids: The text of each token: 0 the first, 1 the second, None for special tokens.
        word_ids: The index of each token's word in its text, None for special tokens; empty if the tokenizer was
            called without offsets.
    """

    num_truncated: int
    vocabulary: Sequence[str] = field(compare=False)
    ids: list[int] = field(default_factory=list)
    type_ids: list[int] = field(default_factory=list)
    offsets: list[tuple[int, int]] = field(default_factory=list)
    sequence_ids: list[int | None] = field(default_factory=list)
    word_ids: list[int | None] = field(default_factory=list)

    @property
    def tokens(self) -> list[str]:
        """Return the tokens, n strings."""
        return [self.vocabulary[i] for i in self.ids]

    def __repr__(self) -> str:
        tokens = " ".join(self.vocabulary[i] for i in self.ids[:_MAX_REPR_TOKENS])
        more = " …" if len(self.ids) > _MAX_REPR_TOKENS else ""
        cut = f", {self.num_truncated:,} cut" if self.num_truncated else ""
        return f"Encoding({pluralize(len(self.ids), 'token')}{cut}: {tokens}{more})"


@dataclass(frozen=True)
class TemplatePiece:
    """An element of a template: a text or a special token.

    Attributes:
        sequence_id: 0 for the first text, 1 for the second, None for a special token.
        ids: The special token's ids; empty for a text.
        type_id: The segment id (token type id) of the element's tokens.
    """

    sequence_id: int | None
    ids: tuple[int, ...] = ()
    type_id: int = 0


Template = tuple[TemplatePiece, ...]


@dataclass(frozen=True)
class TokenIds:
    """A text as the ids of its tokens, in place of a `tokenizers.Encoding`."""

    ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class PostProcessor:
    """The templates for one text and for a pair of texts."""

    single: Template = (TemplatePiece(0),)
    pair: Template = (TemplatePiece(0), TemplatePiece(1))

    @classmethod
    def from_definition(
        cls, definition: Mapping[str, Any], vocab_size: int = sys.maxsize, location: object = "tokenizer.json"
    ) -> PostProcessor:
        """Read the post-processor of a tokenizer.json of Hugging Face's tokenizers.

        Args:
            definition: The content of the tokenizer.json.
            vocab_size: Number of tokens; ids from here on are invalid. Default: ids are not checked.
            location: The file that errors name.

        Raises:
            InputError: The post-processor adds special tokens in more than one step, does not contain each text
                once, uses a segment id above 1, or uses an invalid token id.
        """
        # Other steps, such as ByteLevel, only change offsets.
        steps = [
            step for step in _steps(definition.get("post_processor") or {}) if step.get("type") in _READERS
        ]
        if len(steps) > 1:
            message = "the post-processor adds special tokens more than once"
            raise _unsupported_error("repeated_post_processors", message, location=location)
        if not steps:
            return cls()
        try:
            processor = _READERS[steps[0]["type"]](steps[0])
        except KeyError as error:  # tokenizers writes all other keys that are read here
            message = f"the post-processor does not define the id of {error}"
            raise _unsupported_error("post_processor_token_without_id", message, location=location) from None
        single, pair = (
            [piece.sequence_id for piece in template if piece.sequence_id is not None]
            for template in (processor.single, processor.pair)
        )
        if single != [0] or sorted(pair) != [0, 1]:
            message = "the post-processor does not contain each text exactly once"
            raise _unsupported_error("post_processor_text_count", message, location=location)
        pieces = [*processor.single, *processor.pair]
        if not any(piece.ids for piece in pieces):
            # Models without special tokens, such as GPT-2, have no segment embeddings either.
            return cls()
        if any(piece.type_id > 1 for piece in pieces):
            message = "the post-processor uses a segment other than 0 and 1"
            raise _unsupported_error("post_processor_segment_out_of_range", message, location=location)
        if any(i >= vocab_size for piece in pieces for i in piece.ids):
            message = "the post-processor uses an id that no token has"
            raise _unsupported_error("post_processor_id_out_of_range", message, location=location)
        return processor

    def num_separators(self, cls_id: int, sep_id: int) -> int:
        """Return how many `sep` tokens separate two texts in the templates `cls A sep` and `cls A sep… B sep`.

        All tokens before B must have segment id 0. Other templates return 0.
        """
        separators = len(self.pair) - 4  # all pieces but cls, A, B, and the last sep
        if separators < 1:
            return 0
        type_id = self.pair[-1].type_id
        cls, sep = TemplatePiece(None, (cls_id,)), TemplatePiece(None, (sep_id,))
        first, second = TemplatePiece(0), TemplatePiece(1, type_id=type_id)
        last_sep = TemplatePiece(None, (sep_id,), type_id)
        single = (cls, first, sep)
        pair = (cls, first, *[sep] * separators, second, last_sep)
        return separators if (self.single, self.pair) == (single, pair) else 0

    @property
    def uses_segments(self) -> bool:
        """Return True if tokens of a pair have segment id 1."""
        return any(piece.type_id == 1 for piece in self.pair)

    @property
    def special_ids_around(self) -> tuple[list[int], list[int]]:
        """Return the ids of the special tokens before a single text, and of those after it."""
        index = self.single.index(next(piece for piece in self.single if piece.sequence_id == 0))
        before, after = (
            [i for piece in pieces for i in piece.ids]
            for pieces in (self.single[:index], self.single[index + 1 :])
        )
        return before, after

    def strip(self, ids: Sequence[int], vocab_size: int) -> TokenIds:
        """Return the ids of a text without the special tokens around it, if it has all of them.

        Raises:
            InputError: An id is not one of the `vocab_size` ids.
        """
        for i in ids:
            if not 0 <= i < vocab_size:
                message, hint = (
                    f"no token has the id {i}",
                    f"use this tokenizer's ids, from 0 to {vocab_size - 1:,}",
                )
                raise InputError("token_id_out_of_range", message, hint=hint)
        before, after = self.special_ids_around
        text = list(ids)[len(before) : len(ids) - len(after)]
        return TokenIds(text if [*before, *text, *after] == list(ids) else list(ids))

    def process(
        self,
        texts: Sequence[Any],
        max_length: int,
        truncation: Truncation,
        vocabulary: Sequence[str],
        *,
        with_offsets: bool,
    ) -> Encoding:
        """Truncate one tokenized text or two to `max_length` tokens in all, and add special tokens.

        Args:
            texts: One or two `tokenizers.Encoding` without special tokens.
            max_length: Maximum number of tokens, including special tokens.
            truncation: See `Tokenizer.encode`.
            vocabulary: All tokens by id.
            with_offsets: Fill `offsets` and `word_ids`.
        """
        template = self.single if len(texts) == 1 else self.pair
        lengths = [len(text) for text in texts]
        num_special = sum(len(piece.ids) for piece in template)
        truncated_lengths = _truncate_lengths(lengths, max_length - num_special, max_length, truncation)
        if any(n and not truncated for n, truncated in zip(lengths, truncated_lengths, strict=True)):
            message = f"a limit of {max_length} tokens removes all of a text"
            hint = "raise the limit"
            raise InputError("text_truncated_to_nothing", message, argument="max_length", hint=hint)
        encoding = Encoding(sum(lengths) - sum(truncated_lengths), vocabulary)
        for piece in template:
            if piece.sequence_id is None:
                n = len(piece.ids)
                encoding.ids.extend(piece.ids)
                if with_offsets:
                    encoding.offsets.extend([(0, 0)] * n)
                    encoding.word_ids.extend([None] * n)
            else:
                text, n = texts[piece.sequence_id], truncated_lengths[piece.sequence_id]
                encoding.ids.extend(text.ids[:n])
                if with_offsets:
                    encoding.offsets.extend(text.offsets[:n])
                    encoding.word_ids.extend(text.word_ids[:n])
            encoding.type_ids.extend([piece.type_id] * n)
            encoding.sequence_ids.extend([piece.sequence_id] * n)
        return encoding


def _steps(processor: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a post-processor, or in place of a Sequence its steps."""
    if processor.get("type") == "Sequence":
        for step in processor["processors"]:
            yield from _steps(step)
    else:
        yield processor


def _read_template(step: Mapping[str, Any]) -> PostProcessor:
    special_ids = {name: token["ids"] for name, token in step["special_tokens"].items()}

    def read(elements: Sequence[Mapping[str, Any]]) -> Template:
        pieces = []
        for element in elements:
            if "Sequence" in element:
                value = element["Sequence"]
                pieces.append(TemplatePiece(_SEQUENCE_IDS[value["id"]], type_id=value["type_id"]))
            else:
                value = element["SpecialToken"]
                pieces += [
                    TemplatePiece(None, (token_id,), value["type_id"])
                    for token_id in special_ids[value["id"]]
                ]
        return tuple(pieces)

    return PostProcessor(read(step["single"]), read(step["pair"]))


def _read_roberta(step: Mapping[str, Any]) -> PostProcessor:
    cls, sep = _read_cls_and_sep(step)
    first, second = TemplatePiece(0), TemplatePiece(1)
    return PostProcessor((cls, first, sep), (cls, first, sep, sep, second, sep))


def _read_bert(step: Mapping[str, Any]) -> PostProcessor:
    cls, sep = _read_cls_and_sep(step)
    first, second = TemplatePiece(0), TemplatePiece(1, type_id=1)
    return PostProcessor((cls, first, sep), (cls, first, sep, second, replace(sep, type_id=1)))


def _read_cls_and_sep(step: Mapping[str, Any]) -> tuple[TemplatePiece, TemplatePiece]:
    (_, cls_id), (_, sep_id) = step["cls"], step["sep"]  # each a token and its id
    return TemplatePiece(None, (cls_id,)), TemplatePiece(None, (sep_id,))


_READERS = {
    "TemplateProcessing": _read_template,
    "RobertaProcessing": _read_roberta,
    "BertProcessing": _read_bert,
}


def _truncate_lengths(
    lengths: list[int], max_tokens: int, max_length: int, truncation: Truncation
) -> list[int]:
    """Return the number of tokens of each text to keep, possibly 0.

    "longest_first" gives the same lengths as in tokenizers: remove tokens from the longer text until both are
    equally long, then divide the maximum between both. If it is odd, the longer text (of two equally long ones
    the second) keeps one token more.

    Args:
        lengths: Number of tokens of each text.
        max_tokens: Maximum number of tokens of all texts together, without special tokens.
        max_length: Maximum number of tokens with special tokens, for messages.
        truncation: See `Tokenizer.encode`.
    """
    total = sum(lengths)
    if total <= max_tokens:
        return lengths
    if truncation == "none":
        message = (
            f"the text has {total + max_length - max_tokens} tokens including special tokens, "
            f"the limit is {max_length}"
        )
        raise InputError("text_too_long", message, hint="shorten the text, or allow truncation")
    if max_tokens < 0:
        message = f"a limit of {max_length} tokens is too small for the special tokens"
        raise InputError("max_length_too_small", message, argument="max_length", hint="raise the limit")
    if len(lengths) == 1:
        if truncation == "only_second":
            message = "there is no second text to truncate"
            hint = "truncate the first text"
            raise InputError("second_text_missing", message, argument="truncation", hint=hint)
        return [max_tokens]
    if truncation == "longest_first":
        shorter = min(*lengths, max_tokens // 2)
        longer = max_tokens - shorter
        return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]
    index = 0 if truncation == "only_first" else 1
    other_index = 1 - index
    truncated_lengths = lengths.copy()
    truncated_lengths[index] = max_tokens - lengths[other_index]
    if truncated_lengths[index] < 0:
        other = _TEXT_NAMES[other_index]
        message = (
            f"the {other} text alone has {lengths[other_index]} tokens, "
            f"which exceeds the limit of {max_length} with special tokens"
        )
        hint = f"truncate the {other} text too (longest_first), or raise the limit"
        raise InputError("other_text_too_long", message, argument="truncation", hint=hint)
    return truncated_lengths
