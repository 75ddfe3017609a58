"""The examples of a fine-tuning run: read, sampled, and split into training and validation examples."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith import rng
from bertsmith.errors import InputError, option
from bertsmith.finetuning.settings import FileSettings
from bertsmith.formatting import pluralize
from bertsmith.io.sources import Source, is_path, name_of, to_source
from bertsmith.runs.run_folder import write_whole
from bertsmith.tasks.base import Metadata, TaskData
from bertsmith.tasks.data_checks import find_overlap
from bertsmith.tasks.fitted_task import create_report
from bertsmith.tasks.labels import LabelNames, label_names_to_list, read_label_names
from bertsmith.tasks.registry import Task
from bertsmith.tasks.results import DataSummary, Diagnostic

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examples:
    """The examples of a run.

    Attributes:
        train: The training examples.
        validation: The validation examples, which choose the weights and thresholds.
        test: The test examples, which choose nothing.
        metadata: The metadata of all training examples.
        summary: Tables, and possible mistakes, also those that reading the files corrected.
    """

    train: list[Any]
    validation: list[Any]
    test: list[Any]
    metadata: Metadata
    summary: DataSummary


def file_settings(
    train: Source,
    validation: Source | None = None,
    validation_split: float | None = None,
    test_split: float | None = None,
    sample: int | None = None,
    label_names: str | Path | LabelNames | None = None,
) -> dict[str, Any]:
    """Return the arguments of `finetune` that name examples as settings, without those that are None."""
    values = {
        "train": name_of(train, "train"),
        "validation": None if validation is None else name_of(validation, "validation"),
        "validation_split": validation_split,
        "test_split": test_split,
        "sample": sample,
        "label_names": None if label_names is None else label_names_to_list(read_label_names(label_names)),
    }
    return {name: value for name, value in values.items() if value is not None}


def load_examples(
    task: Task, files: FileSettings, settings: Any, sources: Mapping[str, Source] = {}
) -> Examples:
    """Read and check the examples of a run.

    Args:
        task: The task.
        files: The settings of the files. Sample and split depend only on `files.seed`.
        settings: The task's settings.
        sources: The data named in `files`, in memory or as paths, by "train" and "validation".
    """
    train, validation, test, metadata = split_examples(task, files, settings, sources)
    summary = create_report(task, metadata, settings).data_summary(train, validation)
    diagnostics = task.part("data")(settings, metadata).read_warnings([*train, *validation, *test])
    if files.validation is not None and Path(files.validation).resolve() == Path(files.train).resolve():
        consequence = "so its scores say little of other texts"
        message = f"{files.validation}: the validation file is the training file, {consequence}"
        diagnostics = [Diagnostic("one file for both", message), *diagnostics]
    elif overlap := find_overlap(train, validation):
        diagnostics = [overlap, *diagnostics]
    return Examples(train, validation, test, metadata, summary | DataSummary(diagnostics=diagnostics))


def split_examples(
    task: Task, files: FileSettings, settings: Any, sources: Mapping[str, Source] = {}
) -> tuple[list[Any], list[Any], list[Any], Metadata]:
    """Return the training, validation, and test examples, and the metadata of all examples of `train`."""
    _check_split(files)
    examples, metadata = read_training(task, files, settings, sources)
    test: list[Any] = []
    if files.test_split is not None:
        examples, test = _split(examples, _hold_out(examples, files.test_split, files.seed, "test_split"))
    if files.validation is not None:
        data: TaskData = task.part("data")(settings, metadata)
        validation = data.read(_source(data, "validation", files.validation, sources))
        data.check_validation(validation, metadata)
        return examples, validation, test, metadata
    if files.folds is not None:
        is_validation = [fold + 1 == files.fold for fold in assign_folds(examples, files.folds, files.seed)]
    else:
        assert files.validation_split is not None
        is_validation = _hold_out(examples, files.validation_split, files.seed, "validation_split")
    return *_split(examples, is_validation), test, metadata


def _split(examples: Sequence[Any], is_held_out: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    """Return the examples that are not held out, and those that are."""
    pairs = list(zip(examples, is_held_out, strict=True))
    return [e for e, held_out in pairs if not held_out], [e for e, held_out in pairs if held_out]


def read_training(
    task: Task, files: FileSettings, settings: Any, sources: Mapping[str, Source] = {}
) -> tuple[list[Any], Metadata]:
    """Return the training examples, or a sample of them, and the metadata of all."""
    data: TaskData = task.part("data")(settings, {})
    examples = data.read(_source(data, "train", files.train, sources))
    metadata = data.fit_metadata(examples, files.parsed_label_names)  # a sample may lack a rare label
    if files.sample is not None and files.sample < len(examples):
        indices = rng.permutation(files.seed, "sample", len(examples))[: files.sample]
        examples = [examples[i] for i in sorted(indices)]
    return examples, metadata


def write_split(examples: Examples, data: TaskData, folder: Path) -> None:
    """Write training, validation, and test examples as .jsonl files that the task reads again."""
    parts = {"train": examples.train, "validation": examples.validation}
    if examples.test:
        parts["test"] = examples.test
    for name, part in parts.items():
        lines = [json.dumps(data.to_row(example), ensure_ascii=False) + "\n" for example in part]
        write_whole(folder / f"{name}.jsonl", "".join(lines))
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in parts.items())
    logger.info("the examples as split, in %s: %s", folder, sizes)


def assign_folds(examples: Sequence[Any], folds: int, seed: int) -> list[int]:
    """Return the fold of each example, 0 to folds - 1, for cross-validation.

    Examples with the same group key are in the same fold. If all keys differ, two folds differ by at most one in
    size and in the number of examples of each label; scikit-learn's StratifiedGroupKFold does not ensure that.
    Otherwise a group is added to the fold with the fewest examples of its label, the largest groups first.

    Raises:
        InputError: There are fewer groups than folds.
    """
    groups = _groups(examples)
    if len(groups) < folds:
        num_examples = f"{pluralize(len(examples), 'example')} ({len(groups):,} different)"
        message = f"{num_examples} cannot be split with {option('folds', folds)}"
        hint = "use fewer folds, or add examples"
        raise InputError("folds_too_many", message, argument="folds", hint=hint)
    stratum_ids: dict[Any, int] = {}
    strata = [stratum_ids.setdefault(examples[group[0]].stratify_key, len(stratum_ids)) for group in groups]
    shuffled = rng.permutation(seed, "folds", len(groups)).tolist()
    fold_of, sizes = [0] * len(examples), [0] * folds
    sizes_by_stratum = [[0] * folds for _ in stratum_ids]
    for g in sorted(shuffled, key=lambda g: (strata[g], -len(groups[g]))):
        stratum_sizes = sizes_by_stratum[strata[g]]
        fold = min(range(folds), key=lambda f: (stratum_sizes[f], sizes[f], f))
        stratum_sizes[fold] += len(groups[g])
        sizes[fold] += len(groups[g])
        for i in groups[g]:
            fold_of[i] = fold
    return fold_of


def _groups(examples: Sequence[Any]) -> list[list[int]]:
    """Return the indices of the examples of each group key."""
    groups: dict[Any, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(example.group_key, []).append(i)
    return list(groups.values())


def _hold_out(examples: Sequence[Any], ratio: float, seed: int, argument: str) -> list[bool]:
    """Return True for each example that a random, stratified split holds out.

    Examples with the same group key stay together. If all keys differ, the sizes are exact. A label with a single
    group stays among the training examples.
    """
    from sklearn.model_selection import train_test_split

    groups = _groups(examples)
    strata = [examples[group[0]].stratify_key for group in groups]
    counts = Counter(strata)
    candidates = [g for g in range(len(groups)) if counts[strata[g]] > 1]
    try:
        _, held_out = train_test_split(
            candidates,
            test_size=round(ratio * len(groups)),
            random_state=seed % 2**32,
            stratify=None if strata[0] is None else [strata[g] for g in candidates],
        )
    except ValueError:
        num_examples = f"{pluralize(len(examples), 'example')} ({len(groups):,} different)"
        message = f"{num_examples} cannot be split with {option(argument, f'{ratio:g}')}"
        hint = "choose another share, or add examples: each part needs all labels"
        raise InputError("split_impossible", message, argument=argument, hint=hint) from None
    indices = {i for g in held_out for i in groups[g]}
    return [i in indices for i in range(len(examples))]


def _check_split(files: FileSettings) -> None:
    """Raise InputError unless the settings name exactly one way to get validation examples."""
    ways = {"validation": files.validation, "validation_split": files.validation_split, "folds": files.folds}
    options = [option(name) for name, value in ways.items() if value is not None]
    if not options:
        raise InputError(
            "validation_missing",
            "there is no validation file",
            location=files.train,
            argument="validation",
            hint=f"give a file with {option('validation')}, hold out a part with "
            f"{option('validation_split', 0.2)}, or cross-validate with {option('folds', 5)}",
        )
    if len(options) > 1:
        message = f"{options[0]} and {options[1]} exclude each other"
        raise InputError("validation_set_twice", message, hint=f"omit {options[0]} or {options[1]}")
    if (files.fold is None) != (files.folds is None) or (files.fold or 0) > (files.folds or 0):
        message = f"files.fold={files.fold} is no part of files.folds={files.folds}"
        hint = f"set both: files.fold counts from 1; {option('folds', 5)} uses each of 5 parts once"
        raise InputError("fold_invalid", message, argument="files.fold", hint=hint)


def _source(data: TaskData, name: str, file: str, sources: Mapping[str, Source]) -> Source:
    """Return a file, or the data in memory that has its name."""
    source = sources.get(name)
    if source is None and file == name_of(None, name):
        message = f"the {name} examples of this run were in memory and are not saved"
        raise InputError("data_missing", message, argument=name, hint="pass the same data again")
    return to_source(file if source is None or is_path(source) else source, name, data.tuple_columns)
