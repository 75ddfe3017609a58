"""Texts with a number each."""

from __future__ import annotations

from collections.abc import Sequence

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.tasks.base import Metadata
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.texts import TextData, TextExample


class RegressionData(TextData):
    """Read texts with a number each."""

    def fit_metadata(self, examples: Sequence[TextExample], label_names: LabelNames | None) -> Metadata:
        """Check that each label is a number, and that there are at least two different numbers."""
        values = {example.number for example in examples}
        if len(values) < 2:
            message = f"all examples have the number {next(iter(values), None)}"
            hint = f"check {option('label_column')}"
            raise InputError(
                "single_value", message, location=examples[0].location, argument="label_column", hint=hint
            )
        return super().fit_metadata(examples, label_names)

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return metadata of a head with one output."""
        is_regression = folder.problem_type in (None, "regression") and len(folder.labels or ()) == 1
        return super().metadata_from_hf(folder) if is_regression else None
