"""Train a new head on the states of the frozen encoder, before the whole model is trained (Kumar et al. 2022).

Fine-tuning with a random head first changes the encoder at random, which few examples cannot repair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import torch
from torch import nn

from bertsmith import rng
from bertsmith.device import ComputeContext
from bertsmith.models.task_heads import DenseHead, LinearHead
from bertsmith.tasks.base import TaskModel
from bertsmith.tasks.batching import Item, ItemStream
from bertsmith.training.data_loader import START, iterate_updates
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule, train_step

_NUM_UPDATES, _EVAL_STEPS = 200, 25
_LEARNING_RATE = 1e-3  # at first, falling to 0
_MAX_TOKENS = 100_000  # whose states are kept


def probe_items(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the first items of the training order, as many as have room for their states."""
    shuffled = [items[i] for i in rng.permutation(seed, "examples", len(items), 0)]
    num_tokens = np.cumsum([item.size for item in shuffled])
    return shuffled[: max(1, int(np.searchsorted(num_tokens, _MAX_TOKENS, side="right")))]


def can_evaluate(items: Sequence[Item]) -> bool:
    """Return whether there is room for the states of all validation items."""
    return sum(item.size for item in items) <= 2 * _MAX_TOKENS


def train_head(
    module: TrainModule,
    items: Sequence[Item],
    context: ComputeContext,
    settings: TrainSettings,
    evaluate: Callable[[], float] | None,
) -> None:
    """Train the head of a module whose encoder has no weights, without dropout, and keep its best weights.

    Args:
        module: The cached states, and the head.
        items: The training items.
        context: The compute context.
        settings: The batch size, the seed, and the optimizer's settings.
        evaluate: Returns the score of the head, since a head that is trained for long on few examples may be worse
            than the most frequent label, which it answers at first; None: keep the last weights.
    """
    module.eval()
    _zero_output_weights(module.objective)
    best_score, best_weights = -math.inf, {}
    strategy = GradientStrategy(module, context, settings.model_copy(update={"optim": "adamw"}))
    stream = ItemStream(module.objective.collate, items, settings.seed)
    updates = iterate_updates(stream, settings.batch_size, 1, START, 0, module.objective.counts)
    with closing(updates):
        for step in range(_NUM_UPDATES + 1):
            if evaluate is not None and step % _EVAL_STEPS == 0:
                with torch.inference_mode():
                    score = evaluate()
                if score > best_score:
                    weights = module.saved_tensors()
                    best_score, best_weights = score, {name: t.clone() for name, t in weights.items()}
            if step < _NUM_UPDATES:
                train_step(strategy, next(updates), _LEARNING_RATE * (1 - step / _NUM_UPDATES), step + 1)
    if evaluate is not None:
        module.load_tensors(best_weights)
    strategy.optimizer.zero_grad(set_to_none=True)


def _zero_output_weights(model: TaskModel) -> None:
    """Let the outputs begin as the biases of the last layer."""
    for head in model.heads.values():
        if isinstance(head, LinearHead | DenseHead):
            nn.init.zeros_(head.linear.weight)
