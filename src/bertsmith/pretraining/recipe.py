"""What a new small BERT learns the most with, where nobody says otherwise: by its size, and in minutes.

The paper's settings, made for a thousand times the compute, leave such a model at word frequencies. Those here
were measured: benchmarks/learning.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertsmith.models.family import preset

_LENGTH, _MASKED = 64, 0.3
# No dropout: each text is seen about once. First weights that know what is frequent, what stands near
# what, and what is near.
_COMMON: dict[str, dict[str, Any]] = {
    "model": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "start": {
        "tokens": "neighbours",
        "positions": "sinusoidal",
        "attention": "local",
        "output_bias": "unigram",
    },
    "train": {
        "optim": "muon",
        "muon_momentum": 0.9,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "warmup_steps": 0.06,
        "lr_scheduler_type": "warmup_stable_decay",
        "decay_ratio": 0.4,
        "weight_decay": 0.01,
    },
}


@dataclass(frozen=True)
class Learning:
    """What one size learns with.

    name: of the BERT of this size, for which they were chosen. depths: the numbers of layers of models as wide, in
    every family, that learn with them too; for those they were not chosen anew. deviation: of the first weights.
    rate, muon_rate: the highest of AdamW's part and of Muon's; muon_decay: of Muon's. batch: sequences of 64
    tokens in an update. tokens: in a time that holds so many, it gets further than the smaller sizes.
    """

    name: str
    depths: tuple[int, ...]
    deviation: float
    rate: float
    muon_rate: float
    muon_decay: float
    batch: int
    tokens: float


SIZES = (
    Learning("bert-tiny-uncased", (2,), 0.06, 2e-3, 5e-3, 0.2, 32, 0),
    Learning("bert-mini-uncased", (2, 4, 12), 0.06, 1e-3, 5e-3, 0.1, 64, 17e6),
    Learning("bert-small-uncased", (2, 4), 0.04, 5e-4, 3e-3, 0.1, 64, 70e6),
)
"""From the smallest on. Tiny and mini were measured (benchmarks/RESULTS.md, "Model size by time budget"). The
figures of small are estimates, `tokens` in proportion to what its layers hold."""


def learning_of(sizes: Mapping[str, Any]) -> Learning | None:
    """What a model of these sizes learns with; None where nothing is known for its width and depth."""
    layers, width = sizes.get("num_hidden_layers"), sizes.get("hidden_size")
    return next(
        (size for size in SIZES if layers in size.depths and preset(size.name).hidden_size == width), None
    )


def learning_settings(sizes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of a new model of these sizes where there is no recipe; {} where that was not measured."""
    found = learning_of(sizes)
    if found is None:
        return {}
    own: dict[str, dict[str, Any]] = {
        "model": {"initializer_range": found.deviation},
        "train": {
            "learning_rate": found.rate,
            "muon_learning_rate": found.muon_rate,
            "muon_weight_decay": found.muon_decay,
        },
    }
    if sizes.get("position") == "none":  # there is nothing to begin from, and nothing near to look at
        own["start"] = {"positions": "normal", "attention": "normal"}
    elif sizes.get("embedding_size") is not None:  # a projection stands between positions and the first layer
        own["start"] = {"attention": "normal"}
    return {group: {**values, **own.get(group, {})} for group, values in _COMMON.items()}


def settings_in_minutes(sizes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is added where the budget is one of minutes: short sequences, more to predict in each, batches for the
    size; {} where that was not measured."""
    found = learning_of(sizes)
    if found is None:
        return {}
    return {
        "data": {"sequence_length": _LENGTH, "mlm_probability": _MASKED},
        "train": {"batch_size": found.batch},
    }
