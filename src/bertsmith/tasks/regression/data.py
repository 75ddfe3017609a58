"""Texts with a number each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.tasks.base import Metadata
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.texts import TextData, TextExample

_POINT_OF_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}\.\d{3}")


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

    def read_warnings(self, examples: Sequence[TextExample]) -> list[Diagnostic]:
        """Report points that may separate thousands: all have three digits behind, and other numbers none."""
        warnings = super().read_warnings(examples)
        with_point = [(e.label, e.location) for e in examples if e.label and "." in e.label]
        if 0 < len(with_point) < len(examples) and all(
            _POINT_OF_THOUSANDS.fullmatch(label) for label, _ in with_point
        ):
            shown = [f"'{label}' ({location})" for label, location in with_point]
            message = f"{pluralize(len(shown), 'point')} with three digits behind, read as decimal points"
            locations = [location for _, location in with_point]
            hint = "if they separate thousands, remove them"
            warnings.append(Diagnostic("points of thousands", message, locations, shown, hint))
        return warnings

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return metadata of a head with one output."""
        is_regression = folder.problem_type in (None, "regression") and len(folder.labels or ()) == 1
        return super().metadata_from_hf(folder) if is_regression else None
