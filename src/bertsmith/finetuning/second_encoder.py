"""A left-to-right model is fine-tuned beside one that reads the other way: what must be alike, and its weights."""

from __future__ import annotations

from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError
from bertsmith.finetuning.settings import FinetuneTrainSettings
from bertsmith.models.config import DROPOUT_SETTINGS
from bertsmith.models.feature_extraction import SecondEncoder


def fill_other_direction(
    module: SecondEncoder, base: ModelFolder, name: str, train: FinetuneTrainSettings
) -> None:
    """Give the other direction the weights of a run or folder. InputError where it is no mirror of the base, or
    where layers of the base are to be set apart, which then are two models' layers."""
    other = read_folder(locate(name))
    mine, its = (
        {key: value for key, value in folder.config.model_dump().items() if key not in DROPOUT_SETTINGS}
        for folder in (base, other)
    )
    if its != {**mine, "backwards": not mine["backwards"]}:
        differing = [key for key, value in mine.items() if key != "backwards" and its[key] != value]
        why = (
            f"model.{differing[0]} is {its[differing[0]]}, and {mine[differing[0]]} in the base"
            if differing
            else "both read in the same direction"
        )
        raise InputError(
            "second_encoder_differs",
            f"task.beside={name} does not match the base: {why}",
            argument="task.beside",
            hint="choose a run that differs from the base only in model.backwards",
        )
    if other.tokenizer().digest != base.tokenizer().digest:
        raise InputError(
            "second_encoder_tokenizer_differs",
            f"task.beside={name} has another tokenizer than the base",
            argument="task.beside",
            hint="choose a run with the base's tokenizer",
        )
    asked = {
        "freeze_encoder": train.freeze_encoder,
        "freeze_embeddings": train.freeze_embeddings,
        "freeze_layers": train.freeze_layers > 0,
        "layerwise_lr_decay": train.layerwise_lr_decay < 1,
        "unfreeze_every": train.unfreeze_every is not None,
    }
    if apart := [key for key, is_asked in asked.items() if is_asked]:
        raise InputError(
            "layers_of_two_encoders",
            f"train.{apart[0]} treats layers differently, which is not supported with task.beside",
            argument=f"train.{apart[0]}",
            hint="omit one of the two settings",
        )
    other.load_into("encoder", module.encoder)
