"""Properties of labeled examples: how often each label occurs, and what may be a mistake.

The functions take plain values with their locations and return tables and diagnostics.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.formatting import join_names, pluralize, shorten
from bertsmith.io.tables import warn_of_printed_lists
from bertsmith.io.values import is_blank, to_text
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.results import DataSummary, Diagnostic, MetricTable

_MAX_LABEL_ROWS = 20  # of a table; the other labels are summed in one more row
_EXCERPT_LENGTH = 40  # characters of a text in a message


class LabelCounts(NamedTuple):
    """The number of occurrences of each label, and the location of the first."""

    counts: Counter[str]
    first: dict[str, str]

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]]) -> LabelCounts:
        """Count labels; each pair is a label and its location."""
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for label, location in pairs:
            counts[label] += 1
            first.setdefault(label, location)
        return cls(counts, first)

    def with_location(self, label: str) -> str:
        """Return a label and the location of its first occurrence."""
        return f"'{label}' ({self.first[label]})"


def excerpt(text: str) -> str:
    """Return the beginning of a text in quotes, on one line."""
    return f"'{shorten(text, _EXCERPT_LENGTH)}'"


def summarize_labels(train: LabelCounts, validation: LabelCounts, model_labels: Sequence[str]) -> DataSummary:
    """Return a table of labels, and diagnostics of unusual ones.

    Args:
        train: The labels of the training examples.
        validation: The labels of the validation examples.
        model_labels: The labels that the model will have.
    """
    counts = {"train": dict(train.counts.most_common()), "validation": dict(validation.counts.most_common())}
    missing = _missing_labels(train, validation, model_labels)
    diagnostics = [*_rare_labels(train), *missing, *_similar_labels(train, validation)]
    return DataSummary({"labels": counts}, [label_table(train.counts, validation.counts)], diagnostics)


def label_table(train: Counter[str], validation: Counter[str]) -> MetricTable:
    """Return a table of the frequencies of labels, the most frequent first."""
    labels = sorted({**train, **validation}, key=lambda label: (-train[label], -validation[label], label))
    num_rows = _MAX_LABEL_ROWS if len(labels) > _MAX_LABEL_ROWS + 1 else len(labels)
    rows = [[label, *_cells([label], train), *_cells([label], validation)] for label in labels[:num_rows]]
    if rest := labels[num_rows:]:
        rows.append([f"and {len(rest):,} more", *_cells(rest, train), *_cells(rest, validation)])
    return MetricTable(
        pluralize(len(labels), "label"), ["label", "train", "share", "validation", "share"], rows
    )


def summarize_numbers(train: Sequence[float], validation: Sequence[float]) -> DataSummary:
    """Return a table of the distribution of numbers."""
    functions: dict[str, Callable[[Sequence[float]], float]] = {
        "count": len,
        "mean": fmean,
        "deviation": pstdev,
        "lowest": min,
        "highest": max,
    }
    statistics = {
        part: {name: function(numbers) for name, function in functions.items()}
        for part, numbers in (("train", train), ("validation", validation))
        if numbers
    }
    rows = [[part, *(f"{value:,.6g}" for value in values.values())] for part, values in statistics.items()]
    return DataSummary({"numbers": statistics}, [MetricTable("numbers", ["part", *functions], rows)])


def example_diagnostics(examples: Sequence[Any], labels: Sequence[tuple[str, ...]]) -> list[Diagnostic]:
    """Return contradictions and empty texts among examples.

    Args:
        examples: The examples.
        labels: The reference labels of each.
    """
    contradiction = find_contradictions(
        (example, labels_of_example)
        for example, labels_of_example in zip(examples, labels, strict=True)
        if not example.is_empty
    )
    empty = [example.location for example in examples if example.is_empty]
    return [*([contradiction] if contradiction else []), *([empty_text_diagnostic(empty)] if empty else [])]


def empty_text_diagnostic(locations: Sequence[str]) -> Diagnostic:
    """Return the diagnostic for examples without any text."""
    message = f"{pluralize(len(locations), 'text is', 'texts are')} empty"
    return Diagnostic("empty texts", message, locations, consequence="fill in each, or remove its row")


def find_contradictions(labeled_examples: Iterable[tuple[Any, tuple[str, ...]]]) -> Diagnostic | None:
    """Return the diagnostic for equal inputs with different labels, if there are any."""
    by_question: dict[Hashable, dict[tuple[str, ...], Any]] = {}
    for example, labels in labeled_examples:
        by_question.setdefault(example.question_key, {}).setdefault(labels, example)
    contradictions = [by_labels for by_labels in by_question.values() if len(by_labels) > 1]
    if not contradictions:
        return None

    def describe(by_labels: Mapping[tuple[str, ...], Any]) -> str:
        first = next(iter(by_labels.values()))
        versions = (f"{excerpt(' '.join(k))} ({e.location})" for k, e in by_labels.items())
        return f"{excerpt(' / '.join(first.display_inputs.values()))} has {join_names(versions)}"

    return Diagnostic(
        "equal texts, different labels",
        f"{pluralize(len(contradictions), 'text occurs', 'texts occur')} with different labels",
        [example.location for by_labels in contradictions for example in by_labels.values()],
        list(map(describe, contradictions)),
    )


def find_repeats(keys: Iterable[tuple[Hashable, str]]) -> Diagnostic | None:
    """Return the diagnostic for repeated training examples; each key identifies an example, with its location."""
    first: dict[Hashable, str] = {}
    repeats = [
        (location, first[key]) for key, location in keys if first.setdefault(key, location) != location
    ]
    if not repeats:
        return None
    return Diagnostic(
        "repeated examples",
        f"{pluralize(len(repeats), 'training example repeats', 'training examples repeat')} an earlier one",
        [location for location, _ in repeats],
        [f"{location} is {earlier}" for location, earlier in repeats],
        "each copy counts again in training",
    )


def find_respelled(noun: str, count: LabelCounts, read_as: Mapping[str, str]) -> list[Diagnostic]:
    """Return the diagnostic for labels that are read as others, if there are any.

    Args:
        noun: The name of a label.
        count: The labels of the data.
        read_as: The label that each is read as.
    """
    changed = [label for label, name in read_as.items() if name != label]
    labels = pluralize(len(changed), f"{noun} is", f"{noun}s are")
    message = f"{labels} read, and predicted, in another spelling"
    excerpts = [f"{count.with_location(label)} as '{read_as[label]}'" for label in changed]
    locations = [count.first[label] for label in changed]
    return [Diagnostic(f"{noun}s read as others", message, locations, excerpts)] if changed else []


def label_spellings(labels: Iterable[tuple[str, str]], label_map: LabelMap) -> list[Diagnostic]:
    """Return the diagnostic for numbers that are read as a label in another spelling, if there are any."""
    count = LabelCounts.from_pairs((label_map.name_of_code(label), location) for label, location in labels)
    return find_respelled("label", count, {label: label_map.name(label) for label in count.counts})


def check_text(value: Any, name: str, location: str) -> str:
    """Return an input of an example as a string. Raises `InputError` if it is not a text, or empty."""
    text = to_text(value, name, location)
    if is_blank(text):
        hint = "fill it in, or remove this example"
        raise InputError("empty_text", f"the {name} is empty", location=location, hint=hint)
    return text


def check_examples(examples: Sequence[Any], source: Any, noun: str) -> None:
    """Raise InputError if a source has no examples, or if their ids repeat; log texts that are printed lists.

    Args:
        examples: Examples; an `id` is optional, and may be None.
        source: The source of the examples.
        noun: The plural name of the examples.
    """
    if not examples:
        hint = f"give a file with at least one {noun.removesuffix('s')}"
        raise InputError("no_examples", f"this file has no {noun}", location=source, hint=hint)
    for name in ("text", "question", "context"):
        warn_of_printed_lists(name, [(getattr(e, name, ""), e.location) for e in examples])
    first: dict[str, str] = {}
    for example in examples:
        id = getattr(example, "id", None)
        if id is not None and first.setdefault(id, example.location) != example.location:
            message = f"the id '{id}' occurs twice, first at {first[id]}"
            hint = "give each example an id of its own, or none"
            raise InputError("duplicate_id", message, location=example.location, hint=hint)


def find_overlap(train: Sequence[Any], validation: Sequence[Any]) -> Diagnostic | None:
    """Return the diagnostic for validation examples whose text is also trained on, if there are any."""
    first_location = {example.group_key: example.location for example in reversed(train)}
    shared = [example for example in validation if example.group_key in first_location]
    if not shared:
        return None
    of_examples = pluralize(len(validation), "validation example")
    return Diagnostic(
        "validation texts that are trained on",
        f"{len(shared):,} of {of_examples} have a text that is also trained on, which raises the scores",
        [f"{example.location} is {first_location[example.group_key]}" for example in shared],
    )


def examples_digest(examples: Sequence[Any]) -> str:
    """Return a digest of the texts of examples, whatever their order, labels, and file."""
    keys = sorted({repr(example.question_key) for example in examples})
    return hashlib.sha256("\n".join(keys).encode("utf-8", "backslashreplace")).hexdigest()


def find_validation_examples(
    examples: Sequence[Any], validation_digests: Collection[str]
) -> list[Diagnostic]:
    """Return the diagnostic for test examples that are the validation examples of a model, if they are.

    Args:
        examples: The examples to score.
        validation_digests: The digest of the validation examples of each model that answers.
    """
    if not validation_digests or examples_digest(examples) not in validation_digests:
        return []
    message = "these are the validation examples, which chose the model's weights, so the scores are too high"
    hint = "score a test file, or hold out test examples in fine-tuning by test_split=0.2"
    return [Diagnostic("validation examples as a test", message, consequence=hint)]


def _cells(labels: Sequence[str], counts: Counter[str]) -> tuple[str, str]:
    count = sum(counts[label] for label in labels)
    return f"{count:,}", f"{count / max(1, counts.total()):.1%}"


def _rare_labels(train: LabelCounts) -> Iterator[Diagnostic]:
    if labels := [label for label, count in train.counts.items() if count == 1]:
        yield Diagnostic(
            "labels that occur once",
            f"{pluralize(len(labels), 'label')} with a single training example",
            [train.first[label] for label in labels],
            list(map(train.with_location, labels)),
            "too little to learn from",
        )


def _missing_labels(
    train: LabelCounts, validation: LabelCounts, model_labels: Sequence[str]
) -> Iterator[Diagnostic]:
    if unseen := [label for label in validation.counts if label not in train.counts]:
        yield Diagnostic(
            "validation labels unseen in training",
            f"{pluralize(len(unseen), 'validation label')} without a training example, which cannot be learned",
            [validation.first[label] for label in unseen],
            list(map(validation.with_location, unseen)),
        )
    in_data = train.counts | validation.counts
    if unused := [label for label in model_labels if label not in in_data]:
        message = f"{pluralize(len(unused), 'label')} without any example"
        yield Diagnostic("labels without an example", message, excerpts=_quote(unused))
    missing = [label for label in train.counts if label not in validation.counts]
    if missing and validation.counts:
        yield Diagnostic(
            "labels missing in validation",
            f"{pluralize(len(missing), 'training label')} missing in validation, whose scores say nothing of them",
            [train.first[label] for label in missing],
            _quote(missing),
        )


def _similar_labels(train: LabelCounts, validation: LabelCounts) -> Iterator[Diagnostic]:
    """Yield a diagnostic for labels that differ only by case, spaces, and invisible characters."""
    counts, first = train.counts + validation.counts, {**validation.first, **train.first}
    by_form: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda label: (counts[label], label)):
        by_form.setdefault(_normalize(label), []).append(label)
    pairs = [pair for labels in by_form.values() for pair in combinations(labels, 2)]
    # Single letters may differ by case on purpose.
    if pairs := [(a, b) for a, b in pairs if len(a) > 1 or 10 * counts[a] <= counts[b]]:
        yield Diagnostic(
            "labels nearly alike",
            "labels that differ only by case or spaces are different labels to the model",
            [first[a] for a, _ in pairs],
            [f"'{a}' ({first[a]}) and '{b}' ({pluralize(counts[b], 'time')})" for a, b in pairs],
        )


def _normalize(label: str) -> str:
    """Return a label without case, spaces, and invisible characters."""
    folded = unicodedata.normalize("NFKC", label).casefold()
    return "".join(c for c in folded if not c.isspace() and unicodedata.category(c) != "Cf")


def _quote(labels: Iterable[str]) -> list[str]:
    return [f"'{label}'" for label in labels]
