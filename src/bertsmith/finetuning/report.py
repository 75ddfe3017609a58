"""Logs and report parts of a fine-tuning run: its examples, its evaluations, its warnings."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bertsmith import console
from bertsmith.formatting import pluralize
from bertsmith.models.config import ModelConfig
from bertsmith.tasks.items import Item
from bertsmith.tasks.scores import Finding, Overview, Scores
from bertsmith.tasks.task import Task
from bertsmith.tasks.truncation import Account
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.metric_logger import LOG

logger = logging.getLogger(__name__)

_PLACES = 5  # that a terminal lists of a finding
_UNKNOWN_SHARE = 0.05  # of the pieces: above, the vocabulary is hardly the one for these texts
_POINTS = 400  # of a curve
_LONGER = 3  # times the budget that was too small
_FEW_UPDATES = 100  # a new head hardly learns anything in fewer


def log_examples(overview: Overview, remarks: Sequence[Finding], files: Sequence[str]) -> None:
    """Log the overview's tables, then a table of all findings with their first locations.

    Args:
        overview: The tables and findings.
        remarks: Findings of reading the examples.
        files: The examples' files; locations show their names without folders where these differ.
    """
    for table in overview.tables:
        logger.info("%s", console.format_table(table.title, table.columns, table.rows))
    if not (found := [*overview.findings, *remarks]):
        return
    names = {file: Path(file).name for file in files}
    short = names if len(set(names.values())) == len(names) else {}

    def shortened(text: str) -> str:
        for file in sorted(short, key=len, reverse=True):
            text = text.replace(file, short[file])
        return text

    rows: list[Sequence[object]] = []
    for finding in found:
        where = list(finding.where)
        more = [f"and {len(where) - _PLACES:,} more"] if len(where) > _PLACES else []
        said = ": ".join(filter(None, [finding.what, finding.so]))
        rows.append([shortened(said), tuple(map(shortened, [*where[:_PLACES], *more])) or "–"])
    logger.info(
        "%s",
        console.format_table("possible problems in the examples", ["problem", "where"], rows, ruled=True),
    )


def log_dropout(config: ModelConfig, base: ModelConfig) -> None:
    """Log the dropout if it differs from the base's."""
    own, before = ((c.hidden_dropout_prob, c.attention_probs_dropout_prob) for c in (config, base))
    if own == before:
        return
    now, then = (f"{a:g}" if a == b else f"{a:g} (attention {b:g})" for a, b in (own, before))
    logger.info("dropout is %s in fine-tuning; the base has %s (model.hidden_dropout_prob)", now, then)


def log_texts(account: Account, items: Sequence[Item], tokenizer: Tokenizer, remedy: str) -> None:
    """Log the losses by truncation, with `remedy`, and warn if the vocabulary does not fit the texts."""
    for sentence in (*account.told_of_cuts(remedy), *account.told_of_windows()):
        logger.info("%s", sentence)
    sequences = [sequence for item in items for sequence in item.sequences]
    unknown = sum(int((s.ids == tokenizer.unk_token_id).sum()) for s in sequences)
    if (share := unknown / max(1, sum(s.kept for s in sequences))) > _UNKNOWN_SHARE:
        logger.warning(
            "%.1f%% of the tokens are not in the vocabulary: check that this model fits these texts",
            100 * share,
        )


def evaluations(run: Path, updates_per_epoch: float, best_step: int | None) -> list[dict[str, Any]]:
    """Each evaluation on dev, in order: step, epoch (passes over the examples), loss (the mean of what log.jsonl
    has since the one before; None where it has nothing), the scores, and whether its weights were kept.

    Read from log.jsonl, so that those of a resumed run are those of the uninterrupted one.
    """
    found, losses = [], []
    for text in (run / LOG).read_text(encoding="utf-8").splitlines():
        line: dict[str, Any] = json.loads(text)
        kind, step = line.pop("kind"), line.pop("step")
        if kind == "train" and "loss" in line:
            losses.append(line["loss"])
        if kind == "evaluation":
            loss = fmean(losses) if losses else None
            epoch = round(step / updates_per_epoch, 2)
            found.append({"step": step, "epoch": epoch, "loss": loss, **line, "best": step == best_step})
            losses = []
    return found


def chosen_on_dev(head: Task) -> dict[str, float]:
    """The numbers that were chosen on dev and are kept with the model, by name: a temperature, a threshold. (Those
    of each label stand beside the label's scores.)"""
    return {
        name: value
        for name, value in head.kept_facts.items()
        if isinstance(value, float) and head.facts.get(name) != value
    }


def curve_of(run: Path) -> dict[str, Any]:
    """Loss and learning rate over the updates, as log.jsonl has them; of a long run each point is the mean of some
    lines (`mean_of`), at the last one's update."""
    lines = (json.loads(text) for text in (run / LOG).read_text(encoding="utf-8").splitlines())
    rows = [row for row in lines if row["kind"] == "train" and "loss" in row]
    size = math.ceil(len(rows) / _POINTS) or 1
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    points = [
        {
            "step": some[-1]["step"],
            **{name: fmean(row[name] for row in some) for name in ("loss", "learning_rate")},
        }
        for some in parts
    ]
    return {"mean_of": size, "points": points}


def told_of_learning(
    decides: str,
    dev: Scores,
    baseline: Scores,
    updates: int,
    budget: Mapping[str, float],
    answers: Collection[str] = (),
    beside_name: str = "without looking at the text",
    *,
    reads: bool = False,
) -> list[str]:
    """A sentence where the model is no better than the baseline, mostly an answer that never looks at the text.
    reads: whether the baseline does look.

    budget: of the run, by its setting's name (`budget_of`). answers: the different ones that people gave in dev,
    where they are labels or numbers; with a single one no score is informative.
    """
    score, beside = dev.numbers[decides], baseline.numbers[decides]
    if score > beside:
        return []
    if len(answers) == 1:
        return [
            f"all validation examples have the answer '{next(iter(answers))}', so no score is informative: add "
            "examples with other answers"
        ]
    name, value = next(iter(budget.items()))
    longer = f"train longer (resume with train.{name}={_LONGER * value:.10g})"
    change = (
        f"only {pluralize(updates, 'update was', 'updates were')} made: {longer}, with more examples if you can"
        if updates < _FEW_UPDATES
        else f"try another learning rate (train.learning_rate=2e-5), {longer}, and check the labels"
    )
    return [
        f"the best {decides} on the validation data, {score:.4f}, is no better than {beside_name} ({beside:.4f}): "
        f"{'' if reads else 'the model learned nothing useful; '}{change}"
    ]
