"""Tags of entities: their schemes (IOB1, IOB2, IOBES, BILOU, and BMES), and the entities that they mark.

A tag is a prefix and an entity type (B-PER), or only a prefix; O is outside of entities. IOB2 starts each entity
with B. IOB1 starts an entity with B only if it directly follows another entity of the same type. IOBES, which
BILOU and BMES write with other letters, also ends each entity with E, and tags an entity of one word with S.

Entities are counted as the CoNLL-2000 script conlleval counts them. Invalid sequences are read as the script reads
them: an I- that continues nothing starts an entity, and so does a change of type. The script is older than IOBES
and has no rule for S, or for B after E; as in its successors, a B or S starts an entity, and an E or S ends one.
The strict count includes only entities whose tags are valid in the scheme.

The one library for this, seqeval, had its last release in 2020 and has to be built from source. The counts here
equal those of its default mode for any tags, and those of its strict mode for IOB2, IOBES, and BILOU. In IOB1 its
strict mode reads O B I as an entity of the I alone; here it is no entity, since in IOB1 a B must follow an entity
of the same type.

Files with another separator, order, or case of prefix and type (B_PER, PER-B, b-per) are read as B-PER.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

from bertsmith.metrics.sufficient_statistics import Counts

Scheme = Literal["iob1", "iob2", "iobes"]

OUTSIDE = "O"
_IOBES_LETTERS = {"L": "E", "U": "S", "W": "S", "M": "I"}  # BILOU and BMES → IOBES
_TAG = re.compile(r"O|[BIESLUWM](-.*)?", re.DOTALL)


STANDARD_FORMAT = "B-TYPE"
_SEPARATORS = "-_:./|+~#@ ＿："
_FORMATS = tuple(f"{a}{s}{b}" for a, b in (("B", "TYPE"), ("TYPE", "B")) for s in _SEPARATORS)
OUTSIDE_TYPOS = frozenset("o0ОΟＯ〇")
"""Digits and letters of other scripts that are read as O beside tags with prefixes."""
_OUTSIDE_SIGNS = ("_", "-", "--", "*", "X", "OUT", "OTHER", "NONE", "Other", "None", "other", "none")


class SchemeViolation(NamedTuple):
    """A tag that may not follow the previous one.

    Attributes:
        position: The index of the tag's word.
        previous: The previous tag; None at the start of the sentence.
        tag: The tag; None at the end of the sentence, where an entity of IOBES may be incomplete.
    """

    position: int
    previous: str | None
    tag: str | None


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its prefix, in the letters of IOBES, and its type."""
    prefix, _, type_ = tag.partition("-")
    return _IOBES_LETTERS.get(prefix, prefix), type_


def infer_scheme(rows: Iterable[Sequence[str]]) -> Scheme | None:
    """Return the scheme with the fewest violations in rows of tags; None for other tags, e.g. parts of speech."""
    pairs = Counter(pair for row in rows for pair in pairwise([None, *row, None]))
    tags = {tag for pair in pairs for tag in pair if tag is not None}
    prefixes = {split_tag(tag)[0] for tag in tags}
    if not prefixes & {"B", "I", "E", "S"} or not all(map(_TAG.fullmatch, tags)):
        return None
    candidates: list[Scheme] = ["iob1", "iob2"]
    if prefixes & {"E", "S"}:
        candidates.insert(0, "iobes")

    def num_violations(scheme: Scheme) -> int:
        return sum(count for pair, count in pairs.items() if not is_allowed_transition(*pair, scheme))

    return min(candidates, key=num_violations)


def scheme_of_labels(labels: Collection[str]) -> Scheme | None:
    """Return the scheme of the labels of a model without text; None for other labels.

    B and I are read as IOB2, which nearly all published taggers use.
    """
    if infer_scheme([list(labels)]) is None:
        return None
    prefixes = {split_tag(label)[0] for label in labels}
    if prefixes & {"E", "S"}:
        return "iobes"
    return "iob2" if "B" in prefixes else "iob1"


def infer_letters(tags: Iterable[str]) -> dict[str, str]:
    """Return the letters that these tags use in place of those of IOBES: {"E": "L", "S": "U"} for BILOU."""
    prefixes = {tag.partition("-")[0] for tag in tags}
    return {iobes: letter for letter, iobes in _IOBES_LETTERS.items() if letter in prefixes}


def is_allowed_transition(previous: str | None, tag: str | None, scheme: Scheme) -> bool:
    """Return True if a tag may follow another; None is the start or end of the sentence."""
    previous_prefix, previous_type = (OUTSIDE, "") if previous is None else split_tag(previous)
    prefix, type_ = (OUTSIDE, "") if tag is None else split_tag(tag)
    continues = previous_prefix in ("B", "I") and previous_type == type_
    if scheme == "iob2":
        return prefix in (OUTSIDE, "B") or (prefix == "I" and continues)
    if scheme == "iob1":
        return prefix in (OUTSIDE, "I") or (prefix == "B" and continues)
    return continues if prefix in ("I", "E") else previous_prefix not in ("B", "I")


def find_violations(tags: Sequence[str], scheme: Scheme) -> list[SchemeViolation]:
    """Return the violations of a scheme in a row of tags."""
    pairs = enumerate(pairwise([None, *tags, None]))
    return [SchemeViolation(i, *pair) for i, pair in pairs if not is_allowed_transition(*pair, scheme)]


def entity_prefixes(num_words: int, scheme: Scheme, *, touches: bool = False) -> list[str]:
    """Return the prefixes of an entity's tags.

    Args:
        num_words: The number of words of the entity.
        scheme: The tagging scheme.
        touches: True if an entity of the same type ends right before it.
    """
    if scheme == "iobes":
        return ["S"] if num_words == 1 else ["B", *"I" * (num_words - 2), "E"]
    return ["B" if touches or scheme == "iob2" else "I", *"I" * (num_words - 1)]


def format_tag(prefix: str, type_: str, letters: Mapping[str, str]) -> str:
    """Return a tag in the letters of a file (see `infer_letters`)."""
    letter = letters.get(prefix, prefix)
    return f"{letter}-{type_}" if type_ else letter


class Entity(NamedTuple):
    """Words [start, end) of a sentence, and their type."""

    type: str
    start: int
    end: int


def extract_entities(tags: Sequence[str], strict: Scheme | None = None) -> list[Entity]:
    """Return the entities of one sentence in order.

    Args:
        tags: The tag of each word.
        strict: Return only entities whose tags are valid in this scheme.
    """
    entities: list[Entity] = []
    start = 0
    previous_prefix, previous_type = OUTSIDE, ""
    for i, (prefix, type_) in enumerate(map(split_tag, [*tags, OUTSIDE])):
        ends = previous_prefix in ("E", "S") or prefix in ("B", "S", OUTSIDE) or type_ != previous_type
        if previous_prefix != OUTSIDE and ends:
            entities.append(Entity(previous_type, start, i))
        if previous_prefix == OUTSIDE or ends:
            start = i
        previous_prefix, previous_type = prefix, type_
    if strict is None:
        return entities
    valid_tags = [split_tag(tag) for tag in entities_to_tags(entities, len(tags), strict)]
    actual_tags = [split_tag(tag) for tag in tags]
    return [e for e in entities if actual_tags[e.start : e.end] == valid_tags[e.start : e.end]]


def entities_to_tags(
    entities: Sequence[Entity], num_words: int, scheme: Scheme, letters: Mapping[str, str] | None = None
) -> list[str]:
    """Return the tags of a sentence.

    Args:
        entities: The entities of the sentence in order.
        num_words: The number of words of the sentence.
        scheme: The tagging scheme.
        letters: Prefixes to use in place of those of IOBES, as `infer_letters` returns them.
    """
    tags, letters = [OUTSIDE] * num_words, letters or {}
    previous: Entity | None = None
    for entity in entities:
        touches = previous is not None and (previous.type, previous.end) == (entity.type, entity.start)
        prefixes = entity_prefixes(entity.end - entity.start, scheme, touches=touches)
        tags[entity.start : entity.end] = [format_tag(prefix, entity.type, letters) for prefix in prefixes]
        previous = entity
    return tags


def count_entities(
    references: Iterable[Sequence[str]], predictions: Iterable[Sequence[str]], strict: Scheme | None = None
) -> dict[str, Counts]:
    """Count entities by type over pairs of tag sequences; correct ones have the same type, start, and end.

    Args:
        references: The correct tags of each sentence.
        predictions: The predicted tags of each sentence.
        strict: Count only entities whose tags are valid in this scheme.
    """
    counters: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for reference_tags, predicted_tags in zip(references, predictions, strict=True):
        reference = set(extract_entities(reference_tags, strict))
        predicted = set(extract_entities(predicted_tags, strict))
        for counter, entities in zip(counters, (reference, predicted, reference & predicted), strict=True):
            counter.update(entity.type for entity in entities)
    types = sorted(counters[0] | counters[1])
    return {type_: Counts(*(counter[type_] for counter in counters)) for type_ in types}


class Spelling(NamedTuple):
    """The spelling of a file's tags: their format, the tags that mean O, and the tags that are in neither."""

    tag_format: str
    outside: list[str]
    others: list[str]


@cache
def _pattern(tag_format: str) -> re.Pattern[str]:
    """Return the pattern of tags with a prefix; those without a type (B) are in all formats."""
    separator = tag_format.strip("BbTYPE")
    separator = "[-–—‐‑−－]" if separator == "-" else re.escape(separator)
    prefix = "[BIESLUWM]" if "B" in tag_format else "[bieslumw]"
    if tag_format.startswith("TYPE"):
        return re.compile(f"((?P<type>.+){separator})?(?P<prefix>{prefix})", re.DOTALL)
    return re.compile(f"(?P<prefix>{prefix})({separator}(?P<type>.*))?", re.DOTALL)


def read_tag(tag: str, tag_format: str, outside: Collection[str] = ()) -> str:
    """Return a tag of a file as B-TYPE; the same for a tag that is not in the format.

    Args:
        tag: The tag.
        tag_format: The format, such as "B-TYPE", "TYPE_B", or "b:TYPE".
        outside: Tags that are read as O.
    """
    tag = tag.strip()
    if tag in outside:
        return OUTSIDE
    if (match := _pattern(tag_format).fullmatch(tag)) is None:
        return tag
    prefix, type_ = match["prefix"].upper(), match["type"]
    return prefix if type_ is None else f"{prefix}-{type_}"


def infer_spelling(tags: Iterable[str]) -> Spelling | None:
    """Return the spelling of most of a file's tags; None for tags without prefixes, such as parts of speech."""
    tags = {tag.strip() for tag in tags}
    outside = sorted(tags & OUTSIDE_TYPOS)
    if not outside and OUTSIDE not in tags:
        outside = [sign for sign in _OUTSIDE_SIGNS if sign in tags][:1]
    tags -= {OUTSIDE, *outside}
    best: Spelling | None = None
    for tag_format in (*_FORMATS, *(name.replace("B", "b") for name in _FORMATS)):
        matches = {tag: _pattern(tag_format).fullmatch(tag) for tag in tags}
        prefixes = {match["prefix"].upper() for match in matches.values() if match and match["type"]}
        others = sorted(tag for tag, match in matches.items() if match is None)
        # A set of other tags has no prefixes; single letters alone (b, m, e, s) are prefixes if all tags are.
        is_format = prefixes & set("BISUW") if others or len(tags) < 2 else True
        is_likely = tag_format == STANDARD_FORMAT or 2 * len(others) <= len(tags)
        if is_format and is_likely and (best is None or len(others) < len(best.others)):
            best = Spelling(tag_format, outside, others)
    return best
