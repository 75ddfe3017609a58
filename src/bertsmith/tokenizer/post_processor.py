"""Special tokens around and between texts, as a tokenizer.json's post-processor defines them, and truncation.

BERT `[CLS] A [SEP] B [SEP]`, RoBERTa `<s> A </s></s> B </s>`, GPT-2 the texts alone; other templates are followed
exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize

Truncation = Literal["longest_first", "only_first", "only_second", "none"]

_MAX_REPR_TOKENS = 12
_UNSUPPORTED_HINT = "use a tokenizer whose post-processor takes one text or two"


@dataclass(frozen=True)
class Encoding:
    """A sequence of n tokens, the input of a model.

    Attributes:
        ids: Token ids, n integers.
        segments: Segment ids (0 or 1), n integers.
        offsets: Character ranges (start, end) in each token's own text, (0, 0) for special tokens; empty if the
            tokenizer was called without offsets.
        sources: The text of each token: 0 the first, 1 the second, None for special tokens.
        words: The index of each token's word in its text, None for special tokens; empty like `offsets`.
        cut: The number of tokens that truncation removed.
        vocabulary: All tokens by id.
    """

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    sequence_ids: list[int | None]
    word_ids: list[int | None]
    num_truncated: int
    vocabulary: Sequence[str] = field(default=(), repr=False, compare=False)

    @property
    def tokens(self) -> list[str]:
        """Return the tokens, n strings."""
        return [self.vocabulary[i] for i in self.ids]

    def __repr__(self) -> str:
        ids = self.ids[:_MAX_REPR_TOKENS]
        tokens = " ".join(self.vocabulary[i] if self.vocabulary else str(i) for i in ids)
        more = " …" if len(self.ids) > _MAX_REPR_TOKENS else ""
        cut = f", {self.num_truncated:,} cut" if self.num_truncated else ""
        return f"Encoding({pluralize(len(self.ids), 'token')}{cut}: {tokens}{more})"


@dataclass(frozen=True)
class TemplatePiece:
    """A piece of a template: a text (0 the first, 1 the second) or a special token's ids, with its segment."""

    text: int | None
    ids: tuple[int, ...] = ()
    type_id: int = 0


Template = tuple[TemplatePiece, ...]


@dataclass(frozen=True)
class PostProcessor:
    """The templates for one text and for a pair of texts."""

    single: Template = (TemplatePiece(0),)
    pair: Template = (TemplatePiece(0), TemplatePiece(1))

    @classmethod
    def from_definition(
        cls, definition: Mapping[str, Any], vocab_size: int, location: object
    ) -> PostProcessor:
        """Read the post-processor of a tokenizer.json as the library writes it.

        Args:
            definition: The content of the tokenizer.json.
            vocab_size: Number of tokens; ids from here on are invalid.
            location: The file that errors name.

        Raises:
            InputError: No model supports it: a repeated text, nested templates, a third segment, an invalid id.
        """
        root = definition.get("post_processor") or {}
        steps = [root, *root.get("processors", [])]
        steps = [step for step in steps if step.get("type") in _READERS]
        if len(steps) > 1:
            raise InputError(
                "nested_post_processors",
                "the post-processor adds special tokens more than once",
                location=location,
                hint=_UNSUPPORTED_HINT,
            )
        if not steps:
            return cls()
        try:
            processor = _READERS[steps[0]["type"]](steps[0])
        except KeyError as error:
            raise InputError(
                "post_processor_token_without_id",
                f"the post-processor does not define the id of {error}",
                location=location,
                hint=_UNSUPPORTED_HINT,
            ) from None
        single, pair = (
            [piece.text for piece in template if piece.text is not None]
            for template in (processor.single, processor.pair)
        )
        if single != [0] or sorted(pair) != [0, 1]:
            raise InputError(
                "post_processor_text_count",
                "the post-processor does not contain each text exactly once",
                location=location,
                hint=_UNSUPPORTED_HINT,
            )
        pieces = [*processor.single, *processor.pair]
        if not any(piece.ids for piece in pieces):
            return cls()  # Without special tokens there are no segments, even if a template defines some.
        if any(piece.type_id > 1 for piece in pieces):
            raise InputError(
                "post_processor_segment_out_of_range",
                "the post-processor uses a segment other than 0 and 1",
                location=location,
                hint=_UNSUPPORTED_HINT,
            )
        if any(i >= vocab_size for piece in pieces for i in piece.ids):
            raise InputError(
                "post_processor_id_out_of_range",
                "the post-processor uses an id that no token has",
                location=location,
                hint=_UNSUPPORTED_HINT,
            )
        return processor

    def num_separators(self, cls_id: int, sep_id: int) -> int:
        """Return the number of `sep` between two texts in the templates `cls A sep` and `cls A sep… B sep`.

        All but `B sep` must be segment 0. Other templates return 0.
        """
        count = len(self.pair) - 4
        if count < 1:
            return 0
        type_id = self.pair[-1].type_id
        cls, sep = TemplatePiece(None, (cls_id,)), TemplatePiece(None, (sep_id,))
        single = (cls, TemplatePiece(0), sep)
        second = (TemplatePiece(1, type_id=type_id), TemplatePiece(None, (sep_id,), type_id))
        pair = (cls, TemplatePiece(0), *[sep] * count, *second)
        return count if (self.single, self.pair) == (single, pair) else 0

    @property
    def uses_segments(self) -> bool:
        """Return True if a second text has segment 1; False without special tokens."""
        return any(piece.type_id == 1 for piece in self.pair)

    def process(
        self,
        texts: Sequence[Any],
        max_length: int,
        truncation: Truncation,
        vocabulary: Sequence[str] = (),
        *,
        with_offsets: bool = True,
    ) -> Encoding:
        """Add special tokens to one or two of the library's encodings and truncate them to `max_length` tokens.

        Args:
            texts: The library's encodings without special tokens.
            max_length: Maximum number of tokens, including special tokens.
            truncation: See `Tokenizer.encode`.
            vocabulary: All tokens by id.
            with_offsets: Fill `offsets` and `words`.
        """
        template = self.single if len(texts) == 1 else self.pair
        lengths = [len(text) for text in texts]
        num_special = sum(len(piece.ids) for piece in template)
        text_lengths = _truncated_lengths(lengths, max_length - num_special, max_length, truncation)
        ids: list[int] = []
        type_ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        sources: list[int | None] = []
        words: list[int | None] = []
        for piece in template:
            if piece.text is None:
                n = len(piece.ids)
                ids += piece.ids
                if with_offsets:
                    offsets += [(0, 0)] * n
                    words += [None] * n
            else:
                text, n = texts[piece.text], text_lengths[piece.text]
                ids += text.ids[:n]
                if with_offsets:
                    offsets += text.offsets[:n]
                    words += text.word_ids[:n]
            type_ids += [piece.type_id] * n
            sources += [piece.text] * n
        return Encoding(ids, type_ids, offsets, sources, words, sum(lengths) - sum(text_lengths), vocabulary)


def _read_template(step: Mapping[str, Any]) -> PostProcessor:
    special_ids = {name: tuple(token["ids"]) for name, token in step["special_tokens"].items()}

    def read(entries: Sequence[Mapping[str, Any]]) -> Template:
        pieces = []
        for entry in entries:
            if "Sequence" in entry:
                value = entry["Sequence"]
                pieces.append(TemplatePiece("AB".index(value["id"]), type_id=value["type_id"]))
            else:
                value = entry["SpecialToken"]
                pieces += [TemplatePiece(None, (i,), value["type_id"]) for i in special_ids[value["id"]]]
        return tuple(pieces)

    return PostProcessor(read(step["single"]), read(step["pair"]))


def _read_roberta(step: Mapping[str, Any]) -> PostProcessor:
    cls, sep = (TemplatePiece(None, (step[name][1],)) for name in ("cls", "sep"))
    first, second = TemplatePiece(0), TemplatePiece(1)
    return PostProcessor((cls, first, sep), (cls, first, sep, sep, second, sep))


def _read_bert(step: Mapping[str, Any]) -> PostProcessor:
    cls, sep = (TemplatePiece(None, (step[name][1],)) for name in ("cls", "sep"))
    first, second = TemplatePiece(0), TemplatePiece(1, type_id=1)
    return PostProcessor((cls, first, sep), (cls, first, sep, second, TemplatePiece(None, sep.ids, 1)))


_READERS = {
    "TemplateProcessing": _read_template,
    "RobertaProcessing": _read_roberta,
    "BertProcessing": _read_bert,
}


def _truncated_lengths(
    lengths: list[int], max_tokens: int, max_length: int, truncation: Truncation
) -> list[int]:
    """Return the number of tokens of each text to keep; raise an `InputError` if that removes all of a text.

    Args:
        lengths: Tokens of each text.
        max_tokens: Maximum number of tokens of all texts together, without special tokens.
        max_length: Maximum with special tokens, for messages.
        truncation: See `Tokenizer.encode`.
    """
    truncated = _distribute(lengths, max_tokens, max_length, truncation)
    for index, (length, remaining) in enumerate(zip(lengths, truncated, strict=True)):
        if length and not remaining:
            text = "the text" if len(lengths) == 1 else f"the {('first', 'second')[index]} text"
            raise InputError(
                "text_truncated_to_nothing",
                f"a limit of {max_length} tokens removes all of {text}",
                argument="max_length",
                hint="raise the limit",
            )
    return truncated


def _distribute(lengths: list[int], max_tokens: int, max_length: int, truncation: Truncation) -> list[int]:
    """Return the number of tokens of each text to keep.

    "longest_first" equals the reference: the longer text is cut until both have the same length; the rest is
    halved, and the longer text gets the odd token.
    """
    total = sum(lengths)
    if total <= max_tokens:
        return lengths
    if truncation == "none":
        raise InputError(
            "text_too_long",
            f"the text has {total + max_length - max_tokens} tokens including special tokens, "
            f"the limit is {max_length}",
            hint="shorten the text, or allow truncation",
        )
    if max_tokens < 0:
        raise InputError(
            "max_length_too_small",
            f"a limit of {max_length} tokens is too small for the special tokens",
            argument="max_length",
            hint="raise the limit",
        )
    if len(lengths) == 1:
        if truncation == "only_second":
            raise InputError(
                "second_text_missing",
                "there is no second text to truncate",
                argument="truncation",
                hint="truncate the first text",
            )
        return [max_tokens]
    if truncation != "longest_first":
        index = 0 if truncation == "only_first" else 1
        remaining = max_tokens - lengths[1 - index]
        if remaining < 0:
            other = ("second", "first")[index]
            raise InputError(
                "other_text_too_long",
                f"the {other} text alone has {lengths[1 - index]} tokens, "
                f"which exceeds the limit of {max_length} with special tokens",
                argument="truncation",
                hint=f"truncate the {other} text too (longest_first), or raise the limit",
            )
        return [remaining, lengths[1]] if index == 0 else [lengths[0], remaining]
    shorter, longer = sorted(lengths)
    if 2 * shorter <= max_tokens:
        longer = max_tokens - shorter
    else:
        shorter, longer = max_tokens // 2, max_tokens - max_tokens // 2
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]
