"""The self-test of a model folder: examples that are stored with their answers, and predicted again elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from bertsmith.artifacts.config_schema import read_json
from bertsmith.errors import InputError
from bertsmith.io.sources import Source
from bertsmith.notebook import Report

if TYPE_CHECKING:
    from bertsmith.inference.model import Model

FILE = "self_test.json"
MAX_EXAMPLES = 32
MAX_DIFFERENCE = {"fp32": 1e-3, "bf16": 0.05, "int8": 0.05}
"""The largest difference of a number, relative to numbers above 1, that is not an error."""


def stored_examples(model: Model, examples: Source) -> str:
    """Return the contents of the file: the first examples of a source with the model's answers."""
    predictor = model.predictor.with_settings({}, "save", examples)
    read = islice(predictor.read(examples, labeled=False), MAX_EXAMPLES)
    to_test = [example for example in read if not example.is_empty]
    rows = [predictor.task.data.to_row(example) for example in to_test]
    answers = [prediction.to_dict() for prediction in predictor.predict(to_test)]
    values = {"precision": model.context.precision, "rows": rows, "answers": answers}
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def run_self_test(model: Model) -> Report | None:
    """Predict the stored examples again.

    Returns:
        The number of `examples`, the largest `difference` of a number, and `max_difference`; None if the folder
        has no examples.

    Raises:
        InputError: An answer differs, or the file is damaged.
    """
    file = model.model_folder / FILE
    if not file.exists():
        return None
    stored = read_json(file)
    try:
        rows, answers, precisions = stored["rows"], stored["answers"], {stored["precision"]}
        max_difference = max(MAX_DIFFERENCE[name] for name in precisions | {model.context.precision})
        pairs = list(zip(rows, answers, strict=True))
    except (KeyError, TypeError, ValueError):
        hint = "the file is damaged or was changed: copy it again"
        message = "the file has no rows with their answers"
        raise InputError("invalid_self_test", message, location=file, hint=hint) from None
    predictor = model.predictor
    predictions = predictor.predict(predictor.read(rows, labeled=False)) if rows else []
    largest = 0.0
    for number, ((_, answer), prediction) in enumerate(zip(pairs, predictions, strict=True), 1):
        now = json.loads(json.dumps(prediction.to_dict()))
        for name, difference in _differences(answer, now, "answer"):
            if not difference <= max_difference:
                message = (
                    f"{name} of stored example {number} differs from the answer of the model that was saved"
                )
                hint = "copy the folder again; if it is whole, compare the versions of bertsmith and PyTorch"
                raise InputError("self_test_failed", message, location=file, hint=hint)
            largest = max(largest, difference)
    return Report({"examples": len(pairs), "difference": largest, "max_difference": max_difference})


def _differences(a: Any, b: Any, name: str) -> Iterator[tuple[str, float]]:
    """Yield the difference of each pair of numbers by its name; infinite where other values differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        for key in a:
            yield from _differences(a[key], b[key], str(key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for x, y in zip(a, b, strict=True):
            yield from _differences(x, y, name)
    elif isinstance(a, int | float) and isinstance(b, int | float):
        yield name, abs(a - b) / max(1.0, abs(a))
    else:
        yield name, 0.0 if a == b else float("inf")
