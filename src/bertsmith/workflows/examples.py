"""Which examples a task is learnt from: read, sampled, and held out where there is no dev file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from bertsmith import draws
from bertsmith.errors import InputError
from bertsmith.settings import MAY_CHANGE, Settings
from bertsmith.tasks.task import Example, Task
from bertsmith.workflows.run import write_whole


class FileSettings(Settings):
    """Which examples a task is learnt from."""

    train: str = Field("", description="the file of training examples", json_schema_extra=MAY_CHANGE)
    dev: str | None = Field(
        None, description="the file that decides which epoch is kept", json_schema_extra=MAY_CHANGE
    )
    dev_share: float | None = Field(
        None, gt=0, lt=1, description="without a dev file: share of train to hold out"
    )
    sample: int | None = Field(None, ge=1, description="use only so many examples of train, drawn at random")
    label_names: list[str] | None = Field(None, description="the labels' names in the order of their ids")


@dataclass(frozen=True)
class Examples:
    """What is learnt from, what decides, and the labels by id."""

    train: list[Any]
    dev: list[Any]
    labels: list[str]


def gather(kind: type[Task], files: FileSettings, settings: Any, seed: int) -> Examples:
    """The task's examples from one file or from two. A sample and a split depend on the seed alone."""
    training = kind.read(files.train, settings)
    labels = kind.labels_of(training, files.label_names)  # of the whole file: a sample may miss a rare one
    if files.sample is not None and files.sample < len(training):
        order = draws.permutation(seed, "sample", len(training))[: files.sample]
        training = [training[i] for i in sorted(order)]
    if files.dev is not None:
        if files.dev_share is not None:
            raise InputError("both a dev file and a dev share are given", "leave --dev or --dev-share out")
        return Examples(training, kind.read(files.dev, settings), labels)
    if files.dev_share is None:
        raise InputError(
            f"{files.train}: there is no dev file",
            "give one with --dev, or hold a part out with --dev-share 0.2",
        )
    return Examples(*_split(training, files.dev_share, seed), labels)


def write_split(
    examples: Examples, kind: type[Task], settings: Any, folder: Path, tell: Callable[[str], None]
) -> None:
    """Both parts of a split, as jsonl files that the task reads again."""
    for name, part in (("train", examples.train), ("dev", examples.dev)):
        lines = [json.dumps(kind.as_row(example, settings), ensure_ascii=False) + "\n" for example in part]
        write_whole(folder / f"{name}.jsonl", "".join(lines))
    tell(f"{len(examples.train):,} examples to train on, {len(examples.dev):,} held out, both in {folder}")
    rare = {example.label for example in examples.train} - {example.label for example in examples.dev}
    if rare:
        tell(f"not among those held out, since each has one example: {', '.join(sorted(map(str, rare)))}")


def _split(examples: list[Example], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Hold out a share of each label's examples, by the seed; sizes are exact and the order stays.

    A label with one example keeps it on the training side.
    """
    from sklearn.model_selection import train_test_split

    times = Counter(example.label for example in examples)
    several = [i for i, example in enumerate(examples) if times[example.label] > 1]
    try:
        _, held = train_test_split(
            several,
            test_size=round(share * len(examples)),
            random_state=seed % 2**32,
            stratify=[examples[i].label for i in several],
        )
    except ValueError:
        raise InputError(
            f"{len(examples)} examples cannot be split at --dev-share {share:g}: each side needs all labels",
            "take a larger share, or add examples",
        ) from None
    out = set(held)
    kept = [example for i, example in enumerate(examples) if i not in out]
    return kept, [examples[i] for i in sorted(out)]
