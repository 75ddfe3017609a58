"""`bertsmith data show`: rebuild one training instance of an epoch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.instances.batches import InstanceStream, MaskedBatch
from bertsmith.instances.epoch_plan import EpochPlan
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.instances.settings import DataSettings
from bertsmith.keywords import PretrainKeywords
from bertsmith.pretraining.data import create_stream
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Changes, read_yaml, resolve

_LABELS = {  # by sentence task: the name and the meaning of label 0 and label 1
    "nsp": (("IsNext", "B follows A in its document"), ("NotNext", "B is from another document")),
    "sop": (("in order", "B follows A"), ("swapped", "A follows B: the two changed places")),
}

logger = logging.getLogger(__name__)


def show_instance(
    data: Shards | str | Path,
    index: int,
    epoch: int = 0,
    *,
    settings_file: str | Path | None = None,
    settings: Changes = (),
    phase: int = 1,
    **keywords: Unpack[PretrainKeywords],
) -> dict[str, Any]:
    """Rebuild a training instance as a run with these settings trains on it.

    Args:
        data: A folder of `prepare`, or its Shards.
        index: The position of the instance in the training order of the epoch, from 0.
        epoch: The epoch, from 0.
        settings_file: A run's settings.yaml or a recipe.
        settings: Settings as in `pretrain`; they override the file.
        phase: 2 for the second phase, with long sequences.
        **keywords: Settings by name, such as masking="span".

    Returns:
        The instance: its token ids with and without masks, masked positions (`rows`), labels, and the source of
        each segment.

    Raises:
        InputError: The epoch has no such instance, or the settings have no second phase.
    """
    shards = data if isinstance(data, Shards) else Shards.open(data)
    changes = resolve(PretrainSettings, settings, keywords, show_instance)
    needs_validation = settings_file is not None or "data.validation_split" in changes
    resolved = _resolve_settings(settings_file, changes)
    length = resolved.data.long_sequence_length if phase == 2 else resolved.data.sequence_length
    if length is None:
        message = "these settings have only one phase"
        hint = f"use {option('data.long_sequence_length')}"
        raise InputError("no_second_phase", message, argument="phase", hint=hint)
    split = DocumentSplit.from_settings(shards, resolved.data, allow_empty_validation=not needs_validation)
    if resolved.data.validation_split and not len(split.validation):
        message = "no document is held out for validation: the corpus has only %s"
        logger.warning(message, pluralize(shards.documents, "document"))
    batch_tokens = resolved.train.batch_tokens
    stream = create_stream(shards, split.train, resolved, length, batch_tokens, phase=phase - 1)
    num_instances = stream.size(epoch)
    if not 0 <= index < num_instances:
        available = f"has instances 0 to {num_instances - 1}" if num_instances else "has no instances"
        message = f"epoch {epoch} {available}, not {index}"
        hint = f"use another {option('index')}"
        raise InputError("instance_missing", message, location=shards.folder, argument="index", hint=hint)
    return {
        "data": str(shards.folder),
        "seed": resolved.train.seed,
        "epoch": epoch,
        "drawn_as_epoch": stream.sampling_epoch(epoch),
        "index": index,
        "instances_of_epoch": num_instances,
        "instances": resolved.data.instances,
        "masking": resolved.data.masking,
        **_describe_instance(stream, epoch, index, shards, resolved),
    }


def _resolve_settings(file: str | Path | None, changes: Mapping[str, Any]) -> PretrainSettings:
    """Return the data and training settings of a file with changes; other groups have their defaults."""
    values = read_yaml(file) if file is not None else {}
    groups: dict[str, Any] = {name: values[name] for name in ("data", "train") if name in values}
    return PretrainSettings.of(groups, str(file or "settings")).changed(changes)


def _describe_instance(
    stream: InstanceStream, epoch: int, index: int, shards: Shards, settings: PretrainSettings
) -> dict[str, Any]:
    batch, plan, tokenizer = stream.batch(epoch, index, index + 1), stream.plan(epoch), shards.tokenizer
    ids, positions, labels = (x.tolist() for x in (batch.packed.tokens, batch.rows, batch.labels))
    original = list(ids)
    for position, label in zip(positions, labels, strict=True):
        original[position] = label
    replacements = [
        "mask" if ids[i] == tokenizer.mask_token_id else "kept" if ids[i] == original[i] else "random"
        for i in positions
    ]
    names, corruption = tokenizer.tokens, settings.data.corruption
    corrupted = {}
    if corruption in (corrupted_names := {"insertion": "inserted", "deletion": "deleted"}):
        corrupted[corrupted_names[corruption]] = abs(len(ids) - int(plan.sizes[index]))
    num_ordinary = sum(i not in tokenizer.all_special_ids for i in original)
    return {
        **_describe_label(batch, settings.data),
        "ids": ids,
        "tokens": [names[i] for i in ids],
        "original_ids": original,
        "original_tokens": [names[i] for i in original],
        "segments": batch.packed.segments.tolist(),
        "rows": positions,
        "labels": labels,
        "label_tokens": [names[i] for i in labels],
        "kinds": replacements,
        "parts": _describe_parts(plan, index, shards),
        "counts": {
            "tokens": len(ids),
            "ordinary": num_ordinary,
            "predicted": len(positions),
            "share": round(len(positions) / max(1, num_ordinary), 4),
            **{kind: replacements.count(kind) for kind in ("mask", "random", "kept")},
            **corrupted,
        },
    }


def _describe_label(batch: MaskedBatch, data: DataSettings) -> dict[str, Any]:
    task = data.sentence_task
    if task == "none":
        return {"sentence_task": task, "label": None, "label_name": None, "label_means": None}
    label = int(batch.pair_labels[0])
    # is_next_label is 1 only for nsp, and swaps its labels.
    name, meaning = _LABELS[task][label ^ data.is_next_label]
    if name == "NotNext" and not data.uses_other_documents:
        meaning = "B is from elsewhere in A's document"
    return {"sentence_task": task, "label": label, "label_name": name, "label_means": meaning}


def _describe_parts(plan: EpochPlan, index: int, shards: Shards) -> list[dict[str, Any]]:
    """Return the segments of an instance with their documents and positions."""
    document_starts = np.concatenate([[0], shards.sentence_ends])[shards.document_sentence_offsets]
    descriptions = []
    for k, part in enumerate(range(int(plan.part_offsets[index]), int(plan.part_offsets[index + 1]))):
        start, length, document = (int(x[part]) for x in (plan.starts, plan.lengths, plan.documents))
        token_ids = shards.take(np.arange(start, start + length)).tolist()
        descriptions.append(
            {
                "name": "AB"[k] if plan.is_pair else str(k + 1),
                "document": document,
                "place": shards.location(document),
                "first_token": start - int(document_starts[document]),
                "tokens": length,
                "text": shards.tokenizer.decode(token_ids, keep_special_tokens=True),
            }
        )
    return descriptions
