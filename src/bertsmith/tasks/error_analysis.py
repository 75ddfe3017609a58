"""What a report shows of answers beyond their scores: which labels are taken for which, whether probabilities are
what they say, how predicted numbers lie beside the true ones, and which examples the model finds hardest.

All is plain JSON of bounded size, whatever the number of examples and labels; each part says of how many it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bertsmith.metrics.calibration import expected_calibration_error, reliability_bins
from bertsmith.tasks.scores import Scores, ScoreTable

if TYPE_CHECKING:
    from torch import Tensor

    from bertsmith.tasks.items import Item

_SQUARE = 25  # labels of which a whole matrix is shown
_CONFUSED = 30  # pairs of labels that are listed
_DOTS = 1000  # pairs of numbers that are drawn
_ROWS = 200  # of a table
_HARDEST = 20  # examples
_LONGEST = 400  # characters of a text
_LEAST = 1e-12  # a probability whose logarithm is taken

Details = Mapping[str, Any]
"""By name: `confusion`, `reliability`, `numbers`, as the functions here make them; `tables`: `ScoreTable`s."""


class Answers(NamedTuple):
    """Answers with all that they were made of: the arguments of `Task.decode`, and what it gave."""

    outputs: Sequence[Tensor]
    items: Sequence[Item]
    examples: Sequence[Any]
    predictions: list[dict[str, Any]]


def confusion(
    of: str, truth: Sequence[str], guess: Sequence[str], labels: Sequence[str] = ()
) -> dict[str, Any]:
    """How often each label was taken for each. of: what has labels, such as "texts"; labels: in their order.

    `counts` has a row for each true label and a column for each predicted one, None where there are too many
    labels; `confused` the wrong pairs, the most frequent first.
    """
    cells = Counter(zip(truth, guess, strict=True))
    names = list(dict.fromkeys([*labels, *truth, *guess]))
    wrong = [(pair, times) for pair, times in cells.most_common() if pair[0] != pair[1]]
    square = [[cells[row, column] for column in names] for row in names] if len(names) <= _SQUARE else None
    return {
        "of": of,
        "number": len(truth),
        "wrong": sum(times for _, times in wrong),
        "labels": names if square else [],
        "counts": square,
        "confused": [{"truth": t, "prediction": p, "times": times} for (t, p), times in wrong[:_CONFUSED]],
        "pairs": len(wrong),
    }


def reliability(of: str, confidence: Sequence[float], right: Sequence[bool]) -> dict[str, Any]:
    """How often answers of about one probability are right. of: what has the probabilities."""
    bins = reliability_bins(confidence, right)
    return {
        "of": of,
        "number": len(confidence),
        "error": expected_calibration_error(bins),
        "bins": [one._asdict() for one in bins],
    }


def of_labels(
    of: str, truth: Sequence[str], guess: Sequence[str], sure: Sequence[float], labels: Sequence[str]
) -> Details:
    """Which labels are taken for which, and how sure the model may be. sure: the probability of each answer."""
    right = [t == g for t, g in zip(truth, guess, strict=True)]
    return {"confusion": confusion(of, truth, guess, labels), "reliability": reliability(of, sure, right)}


def numbers(
    truth: Sequence[float], guess: Sequence[float], across: str = "truth", up: str = "prediction"
) -> dict[str, Any]:
    """Numbers beside the true ones; of very many an even choice. across, up: what they are called."""
    step = math.ceil(len(truth) / _DOTS) or 1
    pairs = list(zip(truth, guess, strict=True))[::step]
    return {
        "across": across,
        "up": up,
        "number": len(truth),
        "pairs": [[float(f"{value:.5g}") for value in pair] for pair in pairs],
    }


def cross_entropy(share: float) -> float:
    """Minus the logarithm of the probability that the right answer was given."""
    return -math.log(max(share, _LEAST))


def judged(
    task: Any,
    scores: Scores,
    answers: Answers,
    losses: Sequence[float | None] | None = None,
) -> dict[str, Any]:
    """All that a report shows of the answers of a `Task`. losses: where they are known already."""
    found = dict(task.details(answers.predictions, answers.examples))
    losses = task.losses(answers) if losses is None else losses
    tables = [*scores.tables, *found.pop("tables", ())]
    shown = [_table(table) for table in tables if not _is_square(table)]
    return {"tables": shown, **found, **_hardest(task, answers.predictions, answers.examples, losses)}


def _hardest(
    task: Any,
    predictions: Sequence[Mapping[str, Any]],
    examples: Sequence[Any],
    losses: Sequence[float | None],
) -> dict[str, Any]:
    known = [(loss, i) for i, loss in enumerate(losses) if loss is not None and math.isfinite(loss)]
    if not known:
        return {}
    most = sorted(known, key=lambda pair: -pair[0])[:_HARDEST]
    listed = []
    for loss, i in most:
        gold, answer = task.compared(examples[i], predictions[i])
        asked = [
            (name, shortened(text))
            for number, (name, text) in enumerate(task.asked(examples[i]).items())
            if number == 0 or text != gold  # a passage that is the right answer is shown once
        ]
        listed.append(
            {
                "place": examples[i].place,
                "loss": loss,
                "asked": dict(asked),
                "truth": shortened(gold),
                "prediction": shortened(answer),
            }
        )
    return {"hardest": {"measure": task.measure, "number": len(known), "examples": listed}}


def shortened(text: str) -> str:
    """A text on one line, without the end of a long one."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _table(table: ScoreTable) -> dict[str, Any]:
    rows = [list(row) for row in table.rows[:_ROWS]]
    return {"title": table.title, "columns": table.columns, "rows": rows, "number": len(table.rows)}


def _is_square(table: ScoreTable) -> bool:
    """Whether it is a confusion matrix, which a report has on its own."""
    return len(table.rows) > 1 and table.columns[1:] == [row[0] for row in table.rows]
