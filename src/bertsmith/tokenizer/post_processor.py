"""Special tokens around and between texts, as a tokenizer.json's post-processor has them, and what is cut to fit.

BERT `[CLS] A [SEP] B [SEP]`, RoBERTa `<s> A </s></s> B </s>`, GPT-2 the texts alone; any other template is
followed to the letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bertsmith.errors import InputError
from bertsmith.formatting import counted

Truncation = Literal["longest_first", "only_first", "only_second", "none"]


_SHOWN = 12  # tokens of an encoding's repr


@dataclass(frozen=True)
class Encoding:
    """One sequence of n tokens as a model takes it; every list has n entries, but for `offsets` and `words` where
    they were not asked for, which are empty then.

    `offsets` are slices of each token's own text in characters, (0, 0) for a special; `sources` says which
    text (0 first, 1 second, None special); `words` numbers the words within a text, from 0 (None special).
    `cut` counts the tokens that truncation removed from the ends of the texts. `vocabulary`: all tokens by id.
    """

    ids: list[int]
    segments: list[int]
    offsets: list[tuple[int, int]]
    sources: list[int | None]
    words: list[int | None]
    cut: int
    vocabulary: Sequence[str] = field(default=(), repr=False, compare=False)

    @property
    def tokens(self) -> list[str]:
        """What the ids stand for, n strings."""
        return [self.vocabulary[i] for i in self.ids]

    def __repr__(self) -> str:
        shown = " ".join(self.tokens[:_SHOWN] if self.vocabulary else map(str, self.ids[:_SHOWN]))
        more = " …" if len(self.ids) > _SHOWN else ""
        cut = f", {self.cut:,} cut" if self.cut else ""
        return f"Encoding({counted(len(self.ids), 'token')}{cut}: {shown}{more})"


@dataclass(frozen=True)
class Part:
    """A text (0 the first, 1 the second), or None and the `ids` of a special token; and the segment of either."""

    text: int | None
    ids: tuple[int, ...] = ()
    segment: int = 0


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class SequenceLayout:
    """What one text becomes, and what two become."""

    single: Parts = (Part(0),)
    pair: Parts = (Part(0), Part(1))

    @classmethod
    def of(cls, definition: Mapping[str, Any], size: int, place: str) -> SequenceLayout:
        """The layout of a tokenizer.json as the library writes it. `InputError`, which begins with `place`, for
        one that no model takes: a text twice, a frame around a frame, a third segment, ids from `size` on."""
        whole = definition.get("post_processor") or {}
        steps = [whole, *whole.get("processors", [])]
        frames = [step for step in steps if step.get("type") in _READERS]
        if len(frames) > 1:
            raise InputError(f"{place}: its post-processor puts a frame around a frame", _REMEDY)
        if not frames:
            return cls()
        try:
            layout = _READERS[frames[0]["type"]](frames[0])
        except KeyError as error:
            raise InputError(
                f"{place}: its post-processor does not say which id {error} has", _REMEDY
            ) from None
        texts = [
            [part.text for part in parts if part.text is not None] for parts in (layout.single, layout.pair)
        ]
        if texts[0] != [0] or sorted(texts[1]) != [0, 1]:
            raise InputError(f"{place}: its post-processor does not lay out each text once", _REMEDY)
        parts = [*layout.single, *layout.pair]
        if not any(part.ids for part in parts):
            return cls()  # what has no frame has no segments, though a template gives some
        if any(part.segment > 1 for part in parts):
            raise InputError(f"{place}: its post-processor has a segment other than 0 and 1", _REMEDY)
        if any(i >= size for part in parts for i in part.ids):
            raise InputError(f"{place}: its post-processor names an id that no token has", _REMEDY)
        return layout

    def separators(self, cls: int, sep: int) -> int:
        """How many `sep` stand between two texts in the usual frame, `cls A sep` and `cls A sep… B sep`, in which
        all but `B sep` is segment 0; 0 where the layout is another, and where there is none."""
        count = len(self.pair) - 4
        if count < 1:
            return 0
        second = self.pair[-1].segment
        start, end = Part(None, (cls,)), Part(None, (sep,))
        single = (start, Part(0), end)
        pair = (start, Part(0), *[end] * count, Part(1, segment=second), Part(None, (sep,), second))
        return count if (self.single, self.pair) == (single, pair) else 0

    @property
    def uses_segments(self) -> bool:
        """Whether a second text has segment 1; never without a frame."""
        return any(part.segment == 1 for part in self.pair)

    def laid_out(
        self,
        texts: Sequence[Any],
        limit: int,
        truncation: Truncation,
        vocabulary: Sequence[str] = (),
        *,
        located: bool = True,
    ) -> Encoding:
        """One or two encodings of the library (without specials) in the frame, at most `limit` tokens together.
        vocabulary: the tokens by id. located: whether offsets and words are wanted."""
        parts = self.single if len(texts) == 1 else self.pair
        lengths = [len(text) for text in texts]
        kept = _kept(lengths, limit - sum(len(part.ids) for part in parts), limit, truncation)
        ids: list[int] = []
        segments: list[int] = []
        offsets: list[tuple[int, int]] = []
        sources: list[int | None] = []
        words: list[int | None] = []
        for part in parts:
            if part.text is None:
                n = len(part.ids)
                ids += part.ids
                if located:
                    offsets += [(0, 0)] * n
                    words += [None] * n
            else:
                text, n = texts[part.text], kept[part.text]
                ids += text.ids[:n]
                if located:
                    offsets += text.offsets[:n]
                    words += text.word_ids[:n]
            segments += [part.segment] * n
            sources += [part.text] * n
        return Encoding(ids, segments, offsets, sources, words, sum(lengths) - sum(kept), vocabulary)


_REMEDY = "give a tokenizer that lays out one text or two"


def _of_template(step: Mapping[str, Any]) -> SequenceLayout:
    special = {name: tuple(token["ids"]) for name, token in step["special_tokens"].items()}

    def parts(template: Sequence[Mapping[str, Any]]) -> Parts:
        found = []
        for entry in template:
            if "Sequence" in entry:
                value = entry["Sequence"]
                found.append(Part("AB".index(value["id"]), segment=value["type_id"]))
            else:
                value = entry["SpecialToken"]
                found += [Part(None, (i,), value["type_id"]) for i in special[value["id"]]]
        return tuple(found)

    return SequenceLayout(parts(step["single"]), parts(step["pair"]))


def _of_roberta(step: Mapping[str, Any]) -> SequenceLayout:
    cls, sep = (Part(None, (step[name][1],)) for name in ("cls", "sep"))
    return SequenceLayout((cls, Part(0), sep), (cls, Part(0), sep, sep, Part(1), sep))


def _of_bert(step: Mapping[str, Any]) -> SequenceLayout:
    cls, sep = (Part(None, (step[name][1],)) for name in ("cls", "sep"))
    return SequenceLayout(
        (cls, Part(0), sep), (cls, Part(0), sep, Part(1, segment=1), Part(None, sep.ids, 1))
    )


_READERS = {"TemplateProcessing": _of_template, "RobertaProcessing": _of_roberta, "BertProcessing": _of_bert}


def _kept(lengths: list[int], room: int, limit: int, truncation: Truncation) -> list[int]:
    """How many tokens of each text stay, as `_shared_out` says; InputError where nothing of a text would."""
    kept = _shared_out(lengths, room, limit, truncation)
    for number, (whole, left) in enumerate(zip(lengths, kept, strict=True)):
        if whole and not left:
            which = "the text" if len(lengths) == 1 else f"the {('first', 'second')[number]} text"
            raise InputError(f"a limit of {limit} tokens leaves nothing of {which}", "raise the limit")
    return kept


def _shared_out(lengths: list[int], room: int, limit: int, truncation: Truncation) -> list[int]:
    """How many tokens of each text stay. "longest_first" leaves the shares that the reference leaves: the
    longer text gives until both are even; what both exceed is halved, the odd token going to the longer."""
    total = sum(lengths)
    if total <= room:
        return lengths
    if truncation == "none":
        needed = total + limit - room
        raise InputError(
            f"this text has {needed} tokens with the special ones, the limit is {limit}",
            "cut it, or let it be truncated",
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
