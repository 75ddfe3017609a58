"""Which layers of a model are fine-tuned, from which update on, and at which multiple of the rate.

Frozen layers keep the base's weights: no gradient is computed for them and no moment kept. Their dropout stays.
"""

from __future__ import annotations

import logging

from torch import nn

from bertsmith.errors import InputError
from bertsmith.finetuning.settings import FinetuneTrainSettings
from bertsmith.formatting import pluralize
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.task import Task

logger = logging.getLogger(__name__)


def settle_layers(encoder: Encoder, head: Task, train: FinetuneTrainSettings) -> None:
    """Freeze what keeps the base's weights, and give each layer its multiple of the rate: the top layer 1, each
    one below `layerwise_lr_decay` times that of the one above, the embeddings the lowest (Sun et al. 2019, after
    Howard and Ruder 2018, section 3.2). InputError where the model has no such layers.
    """
    layers = encoder.layers
    first = len(layers) if train.freeze_encoder else train.freeze_layers
    if train.freeze_encoder and (train.unfreeze_every is not None or train.layerwise_lr_decay < 1):
        other = "unfreeze_every" if train.unfreeze_every is not None else "layerwise_lr_decay"
        raise InputError(
            "frozen_with_layer_settings",
            f"train.freeze_encoder and train.{other} exclude each other, because no layer is trained",
            argument=f"train.{other}",
            hint="omit one of them",
        )
    if first > len(layers):
        raise InputError(
            "freeze_layers_too_many",
            f"train.freeze_layers={first}, and the model has {pluralize(len(layers), 'layer')}",
            argument="train.freeze_layers",
            hint=f"give at most {len(layers)}",
        )
    _refuse_shared(encoder, train)
    frozen = [encoder.embeddings] if train.freeze_embeddings or first else []
    last = [encoder.norm] if encoder.norm is not None and first == len(layers) else []
    for module in [*frozen, *layers[:first], *last]:
        module.requires_grad_(False)
    everything = [*encoder.parameters(), *head.parameters()]
    trained = sum(p.numel() for p in everything if p.requires_grad)
    if not trained:
        asked = "train.freeze_encoder" if train.freeze_encoder else f"train.freeze_layers={first}"
        raise InputError(
            "nothing_to_train",
            f"with {asked} nothing would be trained, because the task '{head.name}' has no head",
            argument="train.freeze_encoder" if train.freeze_encoder else "train.freeze_layers",
            hint="freeze fewer layers",
        )
    if frozen:
        also = "" if not first else " and the first layer" if first == 1 else f" and the first {first} layers"
        of = pluralize(sum(p.numel() for p in everything), "parameter")
        logger.info("the embeddings%s are frozen: %s of %s are trained", also, f"{trained:,}", of)
    if train.layerwise_lr_decay < 1:
        for under, module in enumerate(reversed([encoder.embeddings, *layers])):
            setattr(module, "lr_multiplier", train.layerwise_lr_decay**under)  # noqa: B010  (a Module's type knows no such name)


def thaws(
    encoder: Encoder, head: Task, train: FinetuneTrainSettings, updates_per_epoch: float
) -> dict[nn.Parameter, int]:
    """From which update on each parameter is trained, where that is not the first: gradual unfreezing (Howard and
    Ruder 2018, section 3.3). A task without a head begins with the top layer."""
    if train.unfreeze_every is None:
        return {}
    every = train.unfreeze_every
    updates = max(1, round(updates_per_epoch)) if every == "epoch" else every
    begin = any(p.requires_grad for p in head.parameters())
    from_the_top = reversed([encoder.embeddings, *encoder.layers])
    return {
        parameter: updates * number + 1
        for number, module in enumerate(from_the_top, start=int(begin))
        for parameter in module.parameters()
        if parameter.requires_grad and number
    }


def _refuse_shared(encoder: Encoder, train: FinetuneTrainSettings) -> None:
    """InputError for what sets layers apart that are one."""
    apart = {
        f"freeze_layers={train.freeze_layers}": 0 < train.freeze_layers < len(encoder.layers),
        f"unfreeze_every={train.unfreeze_every}": train.unfreeze_every is not None,
        f"layerwise_lr_decay={train.layerwise_lr_decay:g}": train.layerwise_lr_decay < 1,
    }
    asked = [name for name, is_asked in apart.items() if is_asked]
    if encoder.config.share != "none" and asked:
        raise InputError(
            "layers_share_weights",
            f"train.{asked[0]} is impossible, because the layers of this model share their weights",
            argument=f"train.{asked[0].partition('=')[0]}",
            hint=f"omit it, or freeze all {len(encoder.layers)} layers with train.freeze_layers",
        )
