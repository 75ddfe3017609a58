"""What a file calls its tags, and what a tagger is trained on: entities mostly as IOBES, answered as they were
written.

Tags that break their scheme are read as conlleval reads them, and legal ones are learnt in their place; so a legal
path through the labels is what a decoder looks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.metrics.entities import entities_to_tags, extract_entities
from bertsmith.metrics.tagging_schemes import (
    OUTSIDE,
    Scheme,
    SchemeViolation,
    find_violations,
    format_tag,
    infer_letters,
    infer_scheme,
    is_allowed_transition,
    split_tag,
)
from bertsmith.models.crf import (
    FORBIDDEN_SCORE,
    ChainScores,
    log_partitions,
    marginals,
    path_scores,
    viterbi_decode,
)
from bertsmith.tasks.labels import LabelMap, LabelMetadata, LabelNames, label_metadata
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.tagging.tagged import TagExample

_CELLS = 4_000_000  # of what is held at a time when tags are chosen: sentences, words and tags multiplied


class TagFacts(LabelMetadata):
    """What `Tag` says of its facts, by kind.

    written: the file's tags, where the labels are others. scheme: of the file; trained: of the labels; letters:
    the file's for those of IOBES.
    """

    written: list[str] | None = None
    scheme: Scheme | None
    trained: Scheme | None = None
    letters: dict[str, str] = Field(default_factory=dict)
    usual: str
    decoder: Literal["softmax", "crf"] = "softmax"
    characters: bool = False
    roles: bool = False


@dataclass(frozen=True)
class Tagging:
    """From a file's tags to a model's labels and back.

    naming: of the file's tags. labels: the model's, by id. scheme: the file's; None where tags have none. trained:
    the labels'; None where nothing is known of which may follow which. letters: the file's for those of IOBES.
    """

    naming: LabelMap
    labels: list[str]
    scheme: Scheme | None
    trained: Scheme | None
    letters: Mapping[str, str]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Tagging:
        """Return the tagging that a model folder's metadata describe."""
        tags = facts.get("written") or facts["labels"]
        naming = LabelMap.from_metadata({**facts, "labels": tags})
        scheme, trained = facts.get("scheme"), facts.get("trained")
        return cls(naming, facts["labels"], scheme, trained, facts.get("letters") or {})

    def named(self, tags: Iterable[str] | None) -> tuple[str, ...]:
        """A file's tags by their names."""
        return tuple(map(self.naming.name, tags or ()))

    def learnt(self, tags: Sequence[str]) -> list[str]:
        """What is learnt of a sentence's tags, which are by their names."""
        if self.trained is None:
            return list(tags)
        own = self.letters if self.trained == self.scheme else {}
        return entities_to_tags(extract_entities(tags), len(tags), self.trained, own)

    def answered(self, labels: Sequence[str]) -> list[str]:
        """Labels as the file writes them."""
        if self.scheme is None or self.trained in (None, self.scheme):
            return list(labels)
        return entities_to_tags(extract_entities(labels), len(labels), self.scheme, self.letters)

    def is_new(self, tag: str) -> bool:
        """Whether a tag is none that a file had in training, nor of a type that one had."""
        if tag in self.naming.ids:
            return False
        types = {split_tag(label)[1] for label in self.labels if label != OUTSIDE}
        return self.trained is None or split_tag(tag)[1] not in types

    def chain(self) -> ChainScores:
        """0 for what the labels' scheme allows as first, as next and as last, FORBIDDEN for what it does not."""

        def worth(before: str | None, label: str | None) -> float:
            free = self.trained is None or is_allowed_transition(before, label, self.trained)
            return 0.0 if free else FORBIDDEN_SCORE

        return ChainScores(
            torch.tensor([worth(None, label) for label in self.labels]),
            torch.tensor([[worth(before, label) for label in self.labels] for before in self.labels]),
            torch.tensor([worth(label, None) for label in self.labels]),
        )


def facts_of_tags(
    rows: Sequence[Sequence[str]], scheme: str, names: LabelNames | None, place: str, *, roles: bool = False
) -> dict[str, Any]:
    """The facts of the tags of all training sentences. scheme: of the settings. names: of the tags, if the user
    gave them; place: of the first sentence; roles: the tags are roles, which may be of heads alone."""
    found: dict[str, Any] = {"numbered": False} if names is None else label_metadata(names)
    if names is not None:
        naming = LabelMap.from_metadata(found)
        rows = [tuple(map(naming.name, row)) for row in rows]
    times = Counter(tag for row in rows for tag in row)
    tags = found.pop("labels", None) or sorted(times)
    if unknown := sorted(times.keys() - set(tags)):
        raise InputError(
            "label_not_named",
            f"the tag '{unknown[0]}' is not among the label names",
            location=place,
            argument="label_names",
            hint=f"name all tags with {option('label_names')}",
        )
    if len(times) < 2:
        raise InputError(
            "single_label",
            f"all words have the tag '{tags[0]}'",
            location=place,
            argument="tag_column",
            hint=f"a tagger needs at least two tags; check {option('tag_column')}",
        )
    of_file = infer_scheme(rows)
    trained: Any = of_file if scheme == "as_written" or of_file is None else scheme
    letters = infer_letters(tags) if of_file is not None else {}
    facts = {
        **found,
        "labels": tags,
        "written": tags,
        "scheme": of_file,
        "trained": trained,
        "letters": letters,
    }
    tagging = Tagging.of(facts)
    learnt = Counter(tag for row in rows for tag in tagging.learnt(row))
    if of_file is not None and scheme != "as_written":
        heads = roles and all(e.end - e.start == 1 for row in rows for e in extract_entities(row))
        facts["labels"] = _closed(tags, trained, letters if trained == of_file else {}, heads=heads)
    elif names is None:
        facts["labels"] = sorted(learnt)
    else:  # what was repaired may be a tag that has no name
        facts["labels"] = [*tags, *sorted(learnt.keys() - set(tags))]
    # ties by name, so that the order of the sentences decides nothing
    usual = OUTSIDE if OUTSIDE in facts["labels"] else min(learnt, key=lambda tag: (-learnt[tag], tag))
    return {**facts, "usual": usual, "roles": roles}


def _closed(tags: Sequence[str], scheme: Scheme, letters: Mapping[str, str], *, heads: bool) -> list[str]:
    """All tags of a scheme for the types of these: three types give 13 of IOBES. heads: only those of one word."""
    types = {split_tag(tag)[1] for tag in tags if tag != OUTSIDE}
    prefixes = {"iobes": "S" if heads else "BIES", "iob2": "B" if heads else "BI", "iob1": "IB"}[scheme]
    labels = {format_tag(prefix, kind, letters) for prefix in prefixes for kind in types}
    return sorted(labels | ({OUTSIDE} & set(tags)))


def best_tags(
    emissions: Sequence[Tensor], chain: ChainScores, *, crf: bool
) -> list[tuple[list[int], Tensor]]:
    """The best path of each sentence, and the probability of each of its tags.

    emissions: log probabilities [words, tags] of each. crf: probabilities are those over all paths, else the
    emissions' own."""
    found: list[tuple[list[int], Tensor]] = [([], torch.zeros(0)) for _ in emissions]
    for some, rows, lengths in _together([i for i, rows in enumerate(emissions) if len(rows)], emissions):
        shares = marginals(rows, lengths, chain) if crf else rows.exp()
        for i, path, share in zip(some, viterbi_decode(rows, lengths, chain), shares, strict=True):
            found[i] = path, share[: len(path)].gather(1, torch.tensor(path)[:, None])[:, 0]
    return found


def path_losses(
    emissions: Sequence[Tensor], paths: Sequence[Sequence[int] | None], chain: ChainScores
) -> list[float | None]:
    """Minus the log-likelihood of a path through each sentence under a CRF; None where there is no path.

    emissions, chain: as in `best_tags`."""
    found: list[float | None] = [None] * len(emissions)
    for some, rows, lengths in _together([i for i, path in enumerate(paths) if path], emissions):
        wanted = pad_sequence([torch.tensor(paths[i]) for i in some], batch_first=True)
        lost = log_partitions(rows, lengths, chain) - path_scores(rows, wanted, lengths, chain)
        for i, loss in zip(some, lost.tolist(), strict=True):
            found[i] = loss
    return found


def _together(
    numbers: Sequence[int], emissions: Sequence[Tensor]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Sentences of like length, as many as memory has room for: their numbers, their emissions padded, [sentences,
    words, tags], and their lengths."""
    order = sorted(numbers, key=lambda i: -len(emissions[i]))
    while order:
        longest, tags = emissions[order[0]].shape
        some = order[: max(1, _CELLS // (tags * max(longest, tags)))]
        order = order[len(some) :]
        lengths = torch.tensor([len(emissions[i]) for i in some])
        yield some, pad_sequence([emissions[i] for i in some], batch_first=True), lengths


def breaks_in(
    examples: Sequence[TagExample], rows: Sequence[Sequence[str]], scheme: Scheme | None
) -> Diagnostic | None:
    """Tags that break their scheme. rows: each example's tags, by their names."""
    if scheme is None:
        return None
    found = [
        (example, one)
        for example, row in zip(examples, rows, strict=True)
        for one in find_violations(row, scheme)
    ]
    if not found:
        return None

    def place(example: TagExample, one: SchemeViolation) -> str:
        return example.place_of(min(one.position, len(example.words) - 1))

    def said(example: TagExample, one: SchemeViolation) -> str:
        what = "the sentence's end" if one.tag is None else f"'{one.tag}'"
        before = "as the first" if one.previous is None else f"behind {one.previous!r}"
        return f"{what} {before} ({place(example, one)})"

    breaks = "breaks" if len(found) == 1 else "break"
    return Diagnostic(
        "tags that break the scheme",
        f"{pluralize(len(found), 'tag')} {breaks} the scheme {scheme.upper()}",
        list(starmap(place, found)),
        list(starmap(said, found)),
        "read as conlleval reads them, an entity begins or ends there",
    )


def prediction_of(
    example: TagExample, tags: list[str], scores: list[float], *, spans: str | None, blank: str
) -> dict[str, Any]:
    """A sentence's answer. spans: what the tags' entities are called, None where they make none; blank: what is
    between the words of one. Of a running text words and entities have their characters, too."""
    found: dict[str, Any] = {"words": list(example.words), "tags": tags, "scores": scores}
    if example.predicate is not None:
        found["predicate"] = example.predicate
    offsets: list[tuple[int, int]] = []
    for word in example.words if example.text is not None else ():
        start = (example.text or "").index(word, offsets[-1][1] if offsets else 0)
        offsets.append((start, start + len(word)))
    if example.text is not None:
        found["offsets"] = [list(pair) for pair in offsets]
    if spans is None:
        return found
    found[spans] = []
    for entity in extract_entities(tags):
        one = {**entity._asdict(), "text": blank.join(example.words[entity.start : entity.end])}
        if example.text is not None:
            start, end = offsets[entity.start][0], offsets[entity.end - 1][1]
            one |= {"text": example.text[start:end], "start_char": start, "end_char": end}
        found[spans].append(one)
    return found
