"""Entities in rows of tags, and how well they were found, counted as the CoNLL-2000 script conlleval counts them.

Broken rows are read as the script reads them: an I- that continues nothing begins an entity, and so does any
change of type. Where the script, older than IOBES, has no rule (S, and B behind E), a B or S begins an entity
and an E or S ends one, as its successors have it. The strict count has only the entities whose tags are whole
in the scheme.

Ours, since the one library for it, seqeval, had its last release in 2020 and asks for a build of its own. These
counts equal its default mode's for any tags, and its strict mode's for IOB2, IOBES and BILOU. In IOB1 its
strict mode takes O B I for an entity of the I alone; here, where B may only follow an entity of its type, it is
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bertsmith.metrics.precision_recall import Counts
from bertsmith.metrics.tagging_schemes import OUTSIDE, Scheme, parted, spelt, tag_of


class Entity(NamedTuple):
    """Words [start, end) of a row."""

    type: str
    start: int
    end: int


def entities(tags: Sequence[str], strict: Scheme | None = None) -> list[Entity]:
    """The entities of one sentence, in order. strict: only those whose tags are whole in this scheme."""
    found: list[Entity] = []
    start: int | None = None
    before = (OUTSIDE, "")
    for i, tag in enumerate([*tags, OUTSIDE]):
        now = parted(tag)
        begins = _begins(before, now)
        if start is not None and (begins or now[0] == OUTSIDE or before[0] in ("E", "S")):
            found.append(Entity(before[1], start, i))
            start = None
        if begins:
            start = i
        before = now
    if strict is None:
        return found
    right = [parted(tag) for tag in written(found, len(tags), strict)]
    given = [parted(tag) for tag in tags]
    return [e for e in found if given[e.start : e.end] == right[e.start : e.end]]


def written(
    found: Sequence[Entity], size: int, scheme: Scheme, letters: Mapping[str, str] | None = None
) -> list[str]:
    """The tags of a sentence of `size` words with these entities, which are in order. letters: of `letters_of`."""
    tags = [OUTSIDE] * size
    before: Entity | None = None
    for entity in found:
        touches = before is not None and (before.type, before.end) == (entity.type, entity.start)
        prefixes = spelt(entity.end - entity.start, scheme, touches=touches)
        tags[entity.start : entity.end] = [tag_of(prefix, entity.type, letters or {}) for prefix in prefixes]
        before = entity
    return tags


def count(
    truth: Iterable[Sequence[str]], guess: Iterable[Sequence[str]], strict: Scheme | None = None
) -> dict[str, Counts]:
    """Each type's counts over pairs of rows of tags, in the types' order: an entity is right where its type, start
    and end are. `total` sums them up. strict: of `entities`."""
    gold: Counter[str] = Counter()
    found: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for wanted, given in zip(truth, guess, strict=True):
        of_truth, of_guess = set(entities(wanted, strict)), set(entities(given, strict))
        gold.update(e.type for e in of_truth)
        found.update(e.type for e in of_guess)
        right.update(e.type for e in of_truth & of_guess)
    return {kind: Counts(gold[kind], found[kind], right[kind]) for kind in sorted(gold | found)}


def total(types: dict[str, Counts]) -> Counts:
    """All types together."""
    return Counts(*(sum(getattr(f, name) for f in types.values()) for name in ("gold", "found", "right")))


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether an entity begins with this tag."""
    prefix, kind = now
    if prefix == OUTSIDE:
        return False
    return prefix in ("B", "S") or kind != before[1] or before[0] in (OUTSIDE, "E", "S")
