"""`bertsmith data show`: one instance of one epoch, built again as a run with these settings sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith import console
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.instances.batches import PairBatch, PairStream
from bertsmith.instances.epoch_plan import Plan
from bertsmith.instances.holdout_split import Split
from bertsmith.instances.settings import DataSettings
from bertsmith.keywords import Chosen, assignments_of
from bertsmith.pretraining.data import instances_of
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer

_LABELS = {
    "nsp": (
        ("IsNext", "B follows A in its document"),
        ("NotNext", "B is from another document"),
    ),
    "sop": (
        ("in order", "B follows A"),
        ("swapped", "A follows B: the two changed places"),
    ),
}


def show_instance(
    data: Shards | str | Path,
    index: int,
    epoch: int = 0,
    *,
    settings_file: str | Path | None = None,
    settings: Chosen = (),
    seed: int | None = None,
    phase: int = 1,
    tell: Callable[[str], None] = console.tell,
    **keywords: Any,
) -> dict[str, Any]:
    """Instance `index` of the training order of an epoch, both from 0: its ids, masks, label and places.

    data: a folder of `prepare`, or its Shards. settings_file: a run's settings.yaml or a recipe; settings and
    keywords: as in `pretrain` (masking="span"), which win, as seed does.
    phase: 2 for the run's second phase, with long sequences. InputError where the epoch has no such instance.
    """
    shards = data if isinstance(data, Shards) else Shards.open(data)
    data = shards.folder
    assignments = assignments_of(PretrainSettings, settings, keywords, show_instance)
    named = settings_file is not None or any(a.strip().startswith("data.held_out=") for a in assignments)
    assignments = [*assignments, *([f"train.seed={seed}"] if seed is not None else [])]
    chosen = _settings(settings_file, assignments)
    length = chosen.data.sequence_length
    if phase == 2:
        if chosen.data.long_sequence_length is None:
            raise InputError("these settings have one phase only", "set data.long_sequence_length")
        length = chosen.data.long_sequence_length
    split = Split.of(shards, chosen.data, lenient=not named)
    if chosen.data.held_out and not len(split.held_out):
        tell(f"too few documents to hold some out ({shards.documents:,}): all are used")
    stream = instances_of(shards, split.training, chosen, length, chosen.train.batch_tokens, split.kin)
    number = stream.size(epoch)
    if not 0 <= index < number:
        there = f"has instances 0 to {number - 1}" if number else "has no instances"
        raise InputError(f"{data}: epoch {epoch} {there}, not {index}", "choose another --index")
    return {
        "data": str(data),
        "seed": chosen.train.seed,
        "epoch": epoch,
        "drawn_as_epoch": stream.drawn_epoch(epoch),
        "index": index,
        "instances_of_epoch": number,
        "instances": chosen.data.instances,
        "masking": chosen.data.masking,
        **_described(stream, epoch, index, shards, chosen),
    }


def _settings(file: str | Path | None, assignments: Sequence[str]) -> PretrainSettings:
    values = read_yaml(file) if file is not None else {}
    own: dict[str, Any] = {name: values[name] for name in ("data", "train") if name in values}
    return PretrainSettings.of(own, str(file or "settings")).changed(assignments)


def _described(
    stream: PairStream, epoch: int, index: int, shards: Shards, chosen: PretrainSettings
) -> dict[str, Any]:
    batch, plan, tokenizer = stream.batch(epoch, index, index + 1), stream.plan(epoch), shards.tokenizer
    ids, rows, labels = (x.tolist() for x in (batch.packed.tokens, batch.rows, batch.labels))
    original = list(ids)
    for row, label in zip(rows, labels, strict=True):
        original[row] = label
    kinds = [
        "mask" if ids[r] == tokenizer.mask_id else "kept" if ids[r] == original[r] else "random" for r in rows
    ]
    names = tokenizer.tokens
    ordinary = sum(i not in tokenizer.special_ids for i in original)
    return {
        **_label(batch, chosen.data),
        "ids": ids,
        "tokens": [names[i] for i in ids],
        "original_ids": original,
        "original_tokens": [names[i] for i in original],
        "segments": batch.packed.segments.tolist(),
        "rows": rows,
        "labels": labels,
        "label_tokens": [names[i] for i in labels],
        "kinds": kinds,
        "parts": _parts(plan, index, shards, tokenizer),
        "counts": {
            "tokens": len(ids),
            "ordinary": ordinary,
            "predicted": len(rows),
            "share": round(len(rows) / max(1, ordinary), 4),
            **{kind: kinds.count(kind) for kind in ("mask", "random", "kept")},
            **_changed(chosen.data.corrupt, len(ids), int(plan.sizes[index])),
        },
    }


def _changed(corrupt: str, tokens: int, planned: int) -> dict[str, int]:
    """How many tokens were inserted into the text or deleted from it, where the settings ask for that."""
    names = {"insert": "inserted", "delete": "deleted"}
    return {names[corrupt]: abs(tokens - planned)} if corrupt in names else {}


def _label(batch: PairBatch, data: DataSettings) -> dict[str, Any]:
    task = data.sentence_task
    if task == "none":
        return {"sentence_task": task, "label": None, "label_name": None, "label_means": None}
    label = int(batch.pair_labels[0])
    name, meaning = _LABELS[task][label ^ data.is_next_label]
    if name == "NotNext" and not data.lends:
        meaning = "B is from elsewhere in A's document"
    return {"sentence_task": task, "label": label, "label_name": name, "label_means": meaning}


def _parts(plan: Plan, index: int, shards: Shards, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The runs of text that an instance is made of, each with its document and place."""
    before = np.concatenate([[0], shards.sentence_ends])[shards.document_sentences]
    found = []
    for k, part in enumerate(range(int(plan.first[index]), int(plan.first[index + 1]))):
        start, length, document = (int(x[part]) for x in (plan.starts, plan.lengths, plan.documents))
        found.append(
            {
                "name": "AB"[k] if plan.pair else str(k + 1),
                "document": document,
                "place": shards.place(document),
                "first_token": start - int(before[document]),
                "tokens": length,
                "text": tokenizer.decode(
                    shards.take(np.arange(start, start + length)).tolist(), specials=True
                ),
            }
        )
    return found
