"""What labelled examples are like: how often each label occurs, and what in them may be a mistake.

Each function takes plain values with their places and gives tables and sentences; a task puts them together.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean, pstdev
from typing import NamedTuple

from bertsmith.errors import InputError
from bertsmith.formatting import join_names, pluralize
from bertsmith.tasks.scores import Finding, Overview, ScoreTable

_ROWS = 20  # of a table of labels; the others are summed in one more
_EXCERPT = 40  # characters of a text that a sentence shows
_SELDOM, _SELDOM_SHARE, _FEWER = 2, 0.005, 5  # rare: at most 2 or 0.5 % of the other, and a fifth of it
_LETTERS = 4  # of the shorter name: below, one letter is what makes names differ (NN and NNS)
_POSITION = re.compile(r"([BIESLUM])[-_](?=.)")  # of a tag: where its word is in an entity


class GoldAnswer(NamedTuple):
    """What was asked (to compare, and in words), what people answered, and where."""

    content: Hashable
    text: str
    answer: tuple[str, ...]
    place: str


class Labels(NamedTuple):
    """How often each label occurs, and where it does first."""

    times: Counter[str]
    first: dict[str, str]

    @classmethod
    def of(cls, found: Iterable[tuple[str, str]]) -> Labels:
        """found: each label with its place."""
        times: Counter[str] = Counter()
        first: dict[str, str] = {}
        for label, place in found:
            times[label] += 1
            first.setdefault(label, place)
        return cls(times, first)

    def shown(self, label: str) -> str:
        """A label and its first place."""
        return f"'{label}' ({self.first[label]})"


def excerpt(text: str) -> str:
    """The beginning of a text in quotes, on one line."""
    line = " ".join(text.split())
    return f"'{line}'" if len(line) <= _EXCERPT else f"'{line[: _EXCERPT - 1]}…'"


def of_labels(train: Labels, dev: Labels, known: Sequence[str]) -> Overview:
    """The table of labels and what is odd about them. known: the labels that the model is to have."""
    times = {"train": dict(train.times.most_common()), "dev": dict(dev.times.most_common())}
    findings = [*_rare(train), *_on_one_side(train, dev, known), *_alike(train, dev)]
    return Overview({"labels": times}, [_table(train.times, dev.times)], findings)


def of_numbers(train: Sequence[float], dev: Sequence[float]) -> Overview:
    """How numbers spread."""
    parts = {"train": train, "dev": dev}
    figures = {
        part: {
            "count": len(numbers),
            "mean": fmean(numbers),
            "deviation": pstdev(numbers),
            "lowest": min(numbers),
            "highest": max(numbers),
        }
        for part, numbers in parts.items()
        if numbers
    }
    rows = [[part, *(f"{value:,.6g}" for value in found.values())] for part, found in figures.items()]
    columns = ["part", "count", "mean", "deviation", "lowest", "highest"]
    return Overview({"numbers": figures}, [ScoreTable("numbers", columns, rows)])


def empty_texts(places: Sequence[str]) -> Finding:
    """Examples without any text."""
    what = f"{pluralize(len(places), 'text is', 'texts are')} empty"
    so = f"fill {'it in, or remove this row' if len(places) == 1 else 'them in, or remove these rows'}"
    return Finding("empty texts", what, places, so=so)


def contradictions(found: Iterable[GoldAnswer]) -> Finding | None:
    """Equal texts with different answers."""
    answers: dict[Hashable, dict[tuple[str, ...], GoldAnswer]] = {}
    for one in found:
        answers.setdefault(one.content, {}).setdefault(one.answer, one)
    several = [list(of_text.values()) for of_text in answers.values() if len(of_text) > 1]
    if not several:
        return None
    return Finding(
        "equal texts, different labels",
        f"{pluralize(len(several), 'text occurs', 'texts occur')} with different labels",
        [one.place for of_text in several for one in of_text],
        [
            f"{excerpt(of_text[0].text)} has "
            + join_names(f"{excerpt(' '.join(one.answer))} ({one.place})" for one in of_text)
            for of_text in several
        ],
    )


def repeats(found: Iterable[tuple[Hashable, str]]) -> Finding | None:
    """Training examples that are there more than once. found: each example whole, with its place."""
    first: dict[Hashable, str] = {}
    again = [(place, first[whole]) for whole, place in found if first.setdefault(whole, place) != place]
    if not again:
        return None
    is_one = "repeats" if len(again) == 1 else "repeat"
    return Finding(
        "repeated examples",
        f"{pluralize(len(again), 'training example')} {is_one} an earlier one",
        [place for place, _ in again],
        [f"{place} is {earlier}" for place, earlier in again],
        "each copy counts again in training",
    )


def refuse_repeated_ids(found: Iterable[tuple[str | None, str]]) -> None:
    """InputError where ids occur twice. found: each example's id, None where it has none, and its place."""
    first: dict[str, str] = {}
    again = [(n, at) for n, at in found if n is not None and first.setdefault(n, at) != at]
    if not again:
        return
    (number, place), *others = again
    more = join_names(f"'{n}' ({at})" for n, at in others)
    raise InputError(
        "duplicate_id",
        f"the id '{number}' occurs twice (first at {first[number]})"
        + (f", and so do {len(others):,} more: {more}" if others else ""),
        location=place,
        hint="give each example an id of its own, or none",
    )


def on_both_sides(train: Mapping[Hashable, str], dev: Iterable[tuple[Hashable, str]]) -> Finding | None:
    """Dev examples whose text is also trained on. train: contents, each with its first place."""
    every = list(dev)
    both = [(content, place) for content, place in every if content in train]
    if not both:
        return None
    have = "has a text that is" if len(both) == 1 else "have a text that is"
    return Finding(
        "dev texts that are trained on",
        f"{len(both):,} of {pluralize(len(every), 'dev example')} {have} also trained on, which raises the scores",
        [f"{place} is {train[content]}" for content, place in both],
    )


def _table(train: Counter[str], dev: Counter[str]) -> ScoreTable:
    labels = sorted({**train, **dev}, key=lambda label: (-train[label], -dev[label], label))
    most = _ROWS if len(labels) > _ROWS + 1 else len(labels)
    rows = [[label, *_shares([label], train), *_shares([label], dev)] for label in labels[:most]]
    if rest := labels[most:]:
        rows.append([f"and {len(rest):,} more", *_shares(rest, train), *_shares(rest, dev)])
    return ScoreTable(pluralize(len(labels), "label"), ["label", "train", "share", "dev", "share"], rows)


def _shares(labels: Sequence[str], times: Counter[str]) -> tuple[str, str]:
    number, whole = sum(times[label] for label in labels), times.total()
    return f"{number:,}", f"{number / max(1, whole):.1%}"


def _rare(train: Labels) -> Iterator[Finding]:
    once = [label for label, times in train.times.items() if times == 1]
    if once:
        few = "occurs only once in training" if len(once) == 1 else "occur only once in training"
        yield Finding(
            "labels that occur once",
            f"{pluralize(len(once), 'label')} {few}",
            [train.first[label] for label in once],
            list(map(train.shown, once)),
            "too little to learn from",
        )


def _on_one_side(train: Labels, dev: Labels, known: Sequence[str]) -> Iterator[Finding]:
    if unseen := [label for label in dev.times if label not in train.times]:
        yield Finding(
            "labels of dev unseen in training",
            f"{pluralize(len(unseen), 'label of dev does', 'labels of dev do')} not "
            "occur in training, so the model "
            f"cannot learn {'it' if len(unseen) == 1 else 'them'}",
            [dev.first[label] for label in unseen],
            list(map(dev.shown, unseen)),
        )
    if idle := [label for label in known if label not in train.times and label not in dev.times]:
        has = "has" if len(idle) == 1 else "have"
        what = f"{pluralize(len(idle), 'label')} {has} no training example"
        yield Finding("labels without an example", what, shown=list(_quoted(idle)))
    if not dev.times:
        return
    missing = [label for label in train.times if label not in dev.times]
    if len(dev.times) == 1 and missing:
        yield Finding(
            "a dev of one label",
            f"everything in dev has the label '{next(iter(dev.times))}', so its scores say nothing of the others",
            so="dev needs examples of each label",
        )
    elif missing:
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        yield Finding(
            "labels missing in dev",
            f"{pluralize(len(missing), 'label')} of train {are} missing in dev, so "
            f"its scores say nothing of {them}",
            [train.first[label] for label in missing],
            list(_quoted(missing)),
        )


def _alike(train: Labels, dev: Labels) -> Iterator[Finding]:
    """Labels that are written nearly as another one is."""
    times, first = train.times + dev.times, {**dev.first, **train.first}
    spelt: dict[str, list[str]] = {}
    for label in times:
        spelt.setdefault(_plain(label), []).append(label)
    pairs = [
        _by_times(pair, times) for same in spelt.values() if len(same) > 1 for pair in combinations(same, 2)
    ]
    if pairs := [(a, b) for a, b in pairs if len(a) > 1 or 10 * times[a] <= times[b]]:
        yield Finding(
            "labels nearly alike",
            "labels that differ only by case or spaces are different labels to the model",
            [first[a] for a, _ in pairs],
            [f"'{a}' ({first[a]}) and '{b}' ({pluralize(times[b], 'time')})" for a, b in pairs],
        )
    if pairs := sorted(
        {_by_times(p, times) for p in _one_letter_pairs(times) if _is_rare(*_by_times(p, times), times)}
    ):
        yield Finding(
            "labels that may be misspelt",
            "labels that may be misspelt, one letter from another",
            [first[a] for a, _ in pairs],
            [f"'{a}' ({first[a]}) and '{b}' ({pluralize(times[b], 'time')})" for a, b in pairs],
        )


def _by_times(pair: tuple[str, str], times: Counter[str]) -> tuple[str, str]:
    """The rarer one first."""
    a, b = sorted(pair, key=lambda label: (times[label], label))
    return a, b


def _is_rare(a: str, b: str, times: Counter[str]) -> bool:
    most = max(_SELDOM, _SELDOM_SHARE * times[b])
    return times[a] <= most and _FEWER * times[a] <= times[b]


def _plain(label: str) -> str:
    """A label without case, spaces, and characters that are not seen."""
    folded = unicodedata.normalize("NFKC", label).casefold()
    return "".join(c for c in folded if not c.isspace() and unicodedata.category(c) != "Cf")


def _one_letter_pairs(labels: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Labels of which one becomes the other by one letter more, less, other, or exchanged with the next one. Such
    two share a name with one character left out, so not all pairs are looked at."""
    without: dict[tuple[str, str], list[str]] = {}
    for label in labels:
        position, name = _of_tag(label)
        for key in {name, *(name[:i] + name[i + 1 :] for i in range(len(name)))}:
            without.setdefault((position, key), []).append(label)
    for same in without.values():
        yield from (pair for pair in combinations(same, 2) if _one_letter_apart(*pair))


def _of_tag(label: str) -> tuple[str, str]:
    found = _POSITION.match(label)
    return (found[1], label[found.end() :]) if found else ("", label)


def _one_letter_apart(a: str, b: str) -> bool:
    a, b = _of_tag(a)[1], _of_tag(b)[1]
    if min(len(a), len(b)) < _LETTERS or max(len(a), len(b)) <= _LETTERS or _plain(a) == _plain(b):
        return False
    if a[0] != b[0]:  # csubj and nsubj; people hardly ever mistype a first letter
        return False
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    exchanged = len(a) == len(b) == 2 and a == b[::-1]
    return (a + b).isalpha() and (exchanged or max(len(a), len(b)) == 1)


def _quoted(labels: Iterable[str]) -> Iterator[str]:
    return (f"'{label}'" for label in labels)
