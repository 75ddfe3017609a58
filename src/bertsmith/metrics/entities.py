"""Entities in sequences of tags, counted as the CoNLL-2000 script conlleval counts them.

Invalid sequences are read as the script reads them: an I- that continues nothing starts an entity, and so does a
change of type. The script is older than IOBES and has no rule for S, or for B after E; as in its successors, a B
or S starts an entity, and an E or S ends one. The strict count includes only entities whose tags are valid in the
scheme.

The one library for this, seqeval, had its last release in 2020 and has to be built from source. The counts here
equal those of its default mode for any tags, and those of its strict mode for IOB2, IOBES, and BILOU. In IOB1 its
strict mode reads O B I as an entity of the I alone; here it is no entity, since in IOB1 a B must follow an entity
of the same type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bertsmith.metrics.precision_recall import Counts
from bertsmith.metrics.tagging_schemes import OUTSIDE, Scheme, entity_prefixes, format_tag, split_tag


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
    start: int | None = None
    previous = (OUTSIDE, "")
    for i, tag in enumerate([*tags, OUTSIDE]):
        current = split_tag(tag)
        starts = _starts_entity(previous, current)
        if start is not None and (starts or current[0] == OUTSIDE or previous[0] in ("E", "S")):
            entities.append(Entity(previous[1], start, i))
            start = None
        if starts:
            start = i
        previous = current
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
    tags = [OUTSIDE] * num_words
    previous: Entity | None = None
    for entity in entities:
        touches = previous is not None and (previous.type, previous.end) == (entity.type, entity.start)
        prefixes = entity_prefixes(entity.end - entity.start, scheme, touches=touches)
        tags[entity.start : entity.end] = [
            format_tag(prefix, entity.type, letters or {}) for prefix in prefixes
        ]
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
    num_references: Counter[str] = Counter()
    num_predictions: Counter[str] = Counter()
    num_correct: Counter[str] = Counter()
    for reference_tags, predicted_tags in zip(references, predictions, strict=True):
        reference, predicted = (
            set(extract_entities(reference_tags, strict)),
            set(extract_entities(predicted_tags, strict)),
        )
        num_references.update(e.type for e in reference)
        num_predictions.update(e.type for e in predicted)
        num_correct.update(e.type for e in reference & predicted)
    return {
        type_: Counts(num_references[type_], num_predictions[type_], num_correct[type_])
        for type_ in sorted(num_references | num_predictions)
    }


def sum_counts(types: dict[str, Counts]) -> Counts:
    """Return the sums of the counts over all types."""
    counts = types.values()
    return Counts(
        sum(c.num_references for c in counts),
        sum(c.num_predictions for c in counts),
        sum(c.num_correct for c in counts),
    )


def _starts_entity(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    prefix, type_ = current
    if prefix == OUTSIDE:
        return False
    return prefix in ("B", "S") or type_ != previous[1] or previous[0] in (OUTSIDE, "E", "S")
