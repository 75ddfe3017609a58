"""Which examples a task is learnt from: read, sampled, and held out where there is no validation file."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith import rng
from bertsmith.errors import InputError, option
from bertsmith.finetuning.folds import folds_of
from bertsmith.finetuning.settings import FileSettings
from bertsmith.formatting import pluralize
from bertsmith.io.memory import Source, as_file, is_path, name_of
from bertsmith.runs.run_folder import write_whole
from bertsmith.tasks.data_checks import on_both_sides
from bertsmith.tasks.scores import Finding, Overview
from bertsmith.tasks.task import Facts, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examples:
    """What is learnt from, what decides, what there is to know of all training examples; what they are like."""

    train: list[Any]
    dev: list[Any]
    facts: Facts
    overview: Overview


def gather(
    kind: type[Task], files: FileSettings, settings: Any, given: Mapping[str, Source] | None = None
) -> Examples:
    """The task's examples from one file or from two. A sample and a split depend on `files.seed` alone.

    given: what `files` names where it is in memory, by train and validation.
    """
    training, dev, facts = parts_of(kind, files, settings, given)
    sides = Overview(findings=list(_of_both_sides(kind, files, training, dev)))
    return Examples(training, dev, facts, kind.overview(training, dev, facts) | sides)


def parts_of(
    kind: type[Task], files: FileSettings, settings: Any, given: Mapping[str, Source] | None = None
) -> tuple[list[Any], list[Any], Facts]:
    """The examples to train on, those of dev, and what there is to know of all training examples."""
    _check_parts(files)
    training, facts = read_training(kind, files, settings, given)
    if files.validation is not None:
        dev = kind.read(_source(kind, "validation", files.validation, settings, given or {}), settings)
        kind.check_dev(dev, facts)
        return training, dev, facts
    if files.folds is not None:
        fold_of = folds_of(kind, training, files.folds, files.seed)
        held = [fold + 1 == files.fold for fold in fold_of]
        dev = [example for example, out in zip(training, held, strict=True) if out]
        return [example for example, out in zip(training, held, strict=True) if not out], dev, facts
    assert files.validation_split is not None
    return *_split(kind, training, files.validation_split, files.seed), facts


def _check_parts(files: FileSettings) -> None:
    """InputError where it is not clear what dev is."""
    if files.folds is not None:
        if files.validation is not None or files.validation_split is not None:
            given = option("validation" if files.validation is not None else "validation_split")
            raise InputError(
                "folds_with_validation",
                f"{option('folds')} and {given} exclude each other, because each fold is the validation data once",
                hint=f"omit {given}",
            )
        if files.fold is None or files.fold > files.folds:
            raise InputError(
                "fold_invalid",
                f"files.folds={files.folds} needs the number of the fold that is held out",
                argument="files.fold",
                hint=f"set files.fold to 1 … {files.folds}; {option('folds', files.folds)} uses each fold once",
            )
    elif files.fold is not None:
        raise InputError(
            "folds_missing",
            f"files.fold={files.fold} is set without files.folds",
            argument="files.folds",
            hint="set both",
        )
    elif files.validation is not None:
        if files.validation_split is not None:
            raise InputError(
                "validation_with_split",
                f"{option('validation')} and {option('validation_split')} exclude each other",
                hint="omit one of them",
            )
    elif files.validation_split is None:
        raise InputError(
            "validation_missing",
            "there is no validation file",
            location=files.train,
            argument="validation",
            hint=f"give a file with {option('validation')}, hold out a part with "
            f"{option('validation_split', 0.2)}, or cross-validate with {option('folds', 5)}",
        )


def read_training(
    kind: type[Task], files: FileSettings, settings: Any, given: Mapping[str, Source] | None = None
) -> tuple[list[Any], Facts]:
    """The examples of the training file, or a sample of them, and what there is to know of all. given: as for
    `gather`."""
    training = kind.read(_source(kind, "train", files.train, settings, given or {}), settings)
    facts = kind.learnt(training, settings, files.known_names())  # of all: a sample may miss a rare label
    if files.sample is not None and files.sample < len(training):
        order = rng.permutation(files.seed, "sample", len(training))[: files.sample]
        training = [training[i] for i in sorted(order)]
    return training, facts


def _source(kind: type[Task], name: str, file: str, settings: Any, given: Mapping[str, Source]) -> str | Path:
    """A file by its name, or the data in memory that has it."""
    data = given.get(name)
    if data is None and file == name_of(None, name):
        raise InputError(
            "data_missing",
            f"the {name} examples of this run were in memory and are not saved",
            argument=name,
            hint="pass the same data again",
        )
    if data is None or is_path(data):
        return as_file(file, name)
    return as_file(data, name, lambda width: kind.columns_of_tuples(settings, width))


def _of_both_sides(
    kind: type[Task], files: FileSettings, train: Sequence[Any], dev: Sequence[Any]
) -> Iterator[Finding]:
    """Where training and dev share examples: scores on dev are then of what was learnt by heart."""
    if files.validation is not None and Path(files.validation).resolve() == Path(files.train).resolve():
        said = f"{files.validation}: the validation file is the training file, so its scores say little"
        yield Finding("one file for both", said)
        return
    known = {kind.content(example): example.place for example in reversed(train)}
    if found := on_both_sides(known, ((kind.content(example), example.place) for example in dev)):
        yield found


def write_split(examples: Examples, kind: type[Task], settings: Any, folder: Path) -> None:
    """Both parts of a split, as jsonl files that the task reads again."""
    for name, part in (("train", examples.train), ("dev", examples.dev)):
        lines = [json.dumps(kind.as_row(example, settings), ensure_ascii=False) + "\n" for example in part]
        write_whole(folder / f"{name}.jsonl", "".join(lines))
    train = pluralize(len(examples.train), "example")
    logger.info("%s for training and %s for validation, both in %s", train, f"{len(examples.dev):,}", folder)


def _split(kind: type[Task], examples: Sequence[Any], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Hold out a share of the examples, by the seed, and of each stratum where the task has any; the order stays.

    What has the same content (equal texts, questions about one passage) stays together, on one side; where all
    contents differ, the sizes are exact. A stratum with one member keeps it on the training side.
    """
    from sklearn.model_selection import train_test_split

    groups: dict[Any, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(kind.content(example), []).append(i)
    members = list(groups.values())
    strata = [kind.stratum(examples[group[0]]) for group in members]
    times = Counter(strata)
    several = [g for g in range(len(members)) if times[strata[g]] > 1]
    try:
        _, held = train_test_split(
            several,
            test_size=round(share * len(members)),
            random_state=seed % 2**32,
            stratify=None if strata[0] is None else [strata[g] for g in several],
        )
    except ValueError:
        given = (
            "one example"
            if len(examples) == 1
            else f"{len(examples):,} examples ({len(members):,} different)"
        )
        raise InputError(
            "split_impossible",
            f"{given} cannot be split with {option('validation_split', f'{share:g}')}: "
            f"each part needs {'an example' if strata[0] is None else 'all labels'}",
            argument="validation_split",
            hint="choose another share, or add examples",
        ) from None
    out = {i for g in held for i in members[g]}
    kept = [example for i, example in enumerate(examples) if i not in out]
    return kept, [examples[i] for i in sorted(out)]
