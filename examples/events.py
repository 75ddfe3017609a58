"""Who does what with whom: entities are tagged, then each pair of them is asked for its relation.

    python examples/events.py NAMES RELATIONS "Ada Lovelace works in London."

NAMES is a run of `bertsmith finetune tag`, RELATIONS one of `bertsmith finetune relate`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import permutations

import bertsmith as bs


def events(tagger: bs.Model, relations: bs.Model, text: str) -> Iterator[tuple[str, str, str, float]]:
    """Head, relation, tail and its probability, for each pair of entities that has a relation."""
    (tagged,) = tagger.predict([text])
    none = relations.task.metadata.get("none")
    for head, tail in permutations(tagged.entities, 2):
        spans = [(entity["start_char"], entity["end_char"]) for entity in (head, tail)]
        (found,) = relations.predict([text], *([span] for span in spans))
        if found.label != none:
            yield head["text"], found.label, tail["text"], found.score


def main() -> None:
    tagger, relations = bs.load(sys.argv[1]), bs.load(sys.argv[2])
    for text in sys.argv[3:]:
        for head, relation, tail, score in events(tagger, relations, text):
            print(f"{head} | {relation} | {tail} ({score:.2f})")


if __name__ == "__main__":
    main()
