"""`pretrain --model`: a model that pre-training continues from settles its sizes and gives its weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import CONFIG_FILE, locate
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, command, option
from bertsmith.inference.model import Model, load
from bertsmith.models.config import DROPOUT_SETTINGS, ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import get_family
from bertsmith.objectives.objective import MODEL, ModelParts, Objective, infer_objective, objective_type
from bertsmith.pretraining.resolve_settings import resolved
from bertsmith.pretraining.settings import PretrainSettings, StartSettings
from bertsmith.settings import read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SHARED = [f"encoder.embeddings.{table}.weight" for table in ("token", "position", "segment")]
_CALLED = {
    "masked": "masked-LM head",
    "pair": "head for sentence pairs",
    "detector": "head for replaced tokens",
}


def base_of(
    model: str | Path | Model | None,
    written: str | Path | None,
    shards: Shards,
    *,
    resuming: bool,
) -> Model | None:
    """The model to start from: the one given, or the `base` that a file of settings names; None without one.

    written: the recipe, or the settings of the run to resume. InputError where the data has another tokenizer.
    """
    named = read_yaml(written).get("base") if written is not None else None
    if resuming and model is not None and not named:
        raise InputError(
            "run_without_base_model",
            "this run did not start from a model",
            location=written,
            argument="model",
            hint=f"remove {option('model')}, or choose another {option('output_dir')}",
        )
    if model is None and not named:
        return None
    found = model if isinstance(model, Model) else load(model or str(named))
    if found.tokenizer.digest != shards.tokenizer.digest:
        raise InputError(
            "tokenizer_mismatch",
            f"this data was prepared with another tokenizer than that of {found.path}",
            location=shards.folder,
            argument="model",
            hint="prepare the data again with "
            f"{command('data prepare', 'FILES', tokenizer=found.model_folder, output_dir='SHARDS')}",
        )
    return found


def settings_from(
    base: Model,
    sizes: Mapping[str, Any],
    values: Mapping[str, Any],
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> PretrainSettings:
    """The settings of a new run from this model: its sizes, where dropout alone may be set; what its family, or
    its own record, asks of sentences, where nothing else is said. InputError for other sizes than its own."""
    own = base.folder.config
    named = {
        name: value for name, value in sizes.items() if name not in (*DROPOUT_SETTINGS, "initializer_range")
    }
    given = values.get("data", {})
    objective = infer_objective(own, base.folder.parts)
    asked = {**get_family(own.model_type).pretraining, **objective_type(objective).default_data_settings}
    data = {**asked, **_sentence_task(base.folder)}
    chosen = resolved(
        own.model_dump() | named,
        {
            "objective": {"name": objective},
            **values,
            "base": str(base.path),
            "data": {**data, **given} if isinstance(given, dict) else given,
        },
        recipe,
        changes,
        tokenizer,
        of_model=True,
    )
    chosen = _numbered_as(base.folder, chosen, given, changes)
    if chosen.base != str(base.path):
        raise InputError(
            "base_differs_from_model",
            f"the setting 'base' is {chosen.base}, and the model is {base.path}",
            argument="base",
            hint=f"give the model as {option('model')} only",
        )
    for name in ModelConfig.model_fields:
        if name not in DROPOUT_SETTINGS and (asked := getattr(chosen.model, name)) != getattr(own, name):
            raise InputError(
                "size_differs_from_model",
                f"the setting is {asked}, and {base.path} has {getattr(own, name)}",
                argument=f"model.{name}",
                hint=f"remove it, and {option('preset')} too: the sizes are those of the model; only its dropout "
                "can be set",
            )
    if chosen.start != StartSettings():
        raise InputError(
            "start_with_model",
            f"the settings of 'start' are for new weights, and {option('model')} gives the weights",
            argument="start",
            hint=f"remove the settings of 'start', or {option('model')}",
        )
    return chosen


def take_over(
    base: ModelFolder,
    encoder: Encoder,
    objective: Objective,
    chosen: PretrainSettings,
) -> None:
    """Fill the objective's heads with the model's, where it has them; those that start anew are logged."""
    before, data = base.sentence_task, chosen.data
    for part, module in objective.export(encoder)[MODEL].modules.items():
        if part == "encoder":
            continue
        if part == "pair" and base.has(part) and before != data.sentence_task:
            logger.info(
                "%s: the head for sentence pairs was trained for %s; a new one is trained", base.path, before
            )
        elif base.has(part):
            base.load_into(part, module)
            if part == "pair" and before == "nsp" and base.is_next_label != data.is_next_label:
                exchange_answers(module)
                logger.info(
                    "%s: IsNext is %d there and %d here: the outputs of the head for sentence pairs are exchanged",
                    base.path,
                    base.is_next_label,
                    data.is_next_label,
                )
        else:
            logger.info("%s: the model has no %s; a new one is trained", base.path, _CALLED.get(part, part))
    for beside, parts in objective.export(encoder).items():
        if beside != MODEL:
            _take_over_beside(base, beside, parts, getattr(chosen.objective, beside, None))


def _take_over_beside(base: ModelFolder, beside: str, parts: ModelParts, named: str | None) -> None:
    """Fill what stands beside the model, such as a generator: from the folder that is named, else where a run of
    the same sizes left one. InputError where the one named has other sizes, or was trained with another model."""
    place = base.path.parent / beside if named is None else _located(named, beside)
    why = "the folder does not exist"
    if (place / CONFIG_FILE).is_file():
        found = read_folder(place)
        own = {
            name: getattr(parts.config, name)
            for name in ModelConfig.model_fields
            if name not in DROPOUT_SETTINGS
        }
        other = [name for name, value in own.items() if getattr(found.config, name) != value]
        strange = not other and not _same_tables(base, found)
        if not (other or strange) and all(found.has(part) for part in parts.modules if part != "encoder"):
            for part, module in parts.modules.items():
                found.load_into(part, module)
            return
        why = (
            f"the {beside} has another {other[0]}"
            if other
            else f"the {beside} has other embeddings"
            if strange
            else f"the {beside} has no head"
        )
        if other and named is not None:
            name = other[0]
            why = f"{name} is {getattr(found.config, name)}, and the {beside} of this run has {own[name]}"
    if named is not None:
        raise InputError(
            "generator_mismatch",
            why,
            location=named,
            argument=f"objective.{beside}",
            hint=f"name the {beside} that the model was trained with, and its share of the width of the model "
            f"(objective.{beside}_size)",
        )
    logger.info("%s: %s, so a new %s is trained", place, why, beside)


def _located(named: str, beside: str) -> Path:
    """A folder that is named: that of this kind within a run, else the model itself."""
    within = Path(named) / beside
    return within if (within / CONFIG_FILE).is_file() else locate(named)


def _same_tables(base: ModelFolder, beside: ModelFolder) -> bool:
    """Whether two models that were trained together have the tables that they shared."""
    first, second = base.weights(), beside.weights()
    return all(
        torch.allclose(first[name].float(), second[name].float(), atol=1e-6)
        for name in _SHARED
        if name in first and name in second
    )


def exchange_answers(pair: nn.Module) -> None:
    """A head of two outputs answers 0 for what it answered 1, and 1 for 0."""
    with torch.no_grad():
        for weights in pair.parameters():
            weights.copy_(weights.flip(0))


def _sentence_task(folder: ModelFolder) -> dict[str, Any]:
    """What the model's own pre-training asked of sentence pairs, where its record says so."""
    task = folder.record.get("sentence_task")
    return {} if task is None else {"sentence_task": task}


def _numbered_as(
    base: ModelFolder, chosen: PretrainSettings, given: Any, changes: Mapping[str, Any]
) -> PretrainSettings:
    """The settings with the base's label for IsNext, where pairs are asked for it and nobody named another."""
    named = "is_next_label" in given or "data.is_next_label" in changes
    if named or chosen.data.sentence_task != "nsp":
        return chosen
    data = chosen.data.model_copy(update={"is_next_label": base.is_next_label})
    return chosen.model_copy(update={"data": data})
