"""The plan of a pre-training run: its tokens, passes over the corpus, time, memory, and disk space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.keywords import PretrainKeywords
from bertsmith.notebook import Result
from bertsmith.pretraining import resolve_settings
from bertsmith.pretraining.data import PretrainData, check_lengths
from bertsmith.pretraining.model import count_trained_parameters
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.pretraining.speed_probe import estimate_update_seconds
from bertsmith.runs import compute_setup
from bertsmith.settings import Changes, resolve

_WEIGHT_BYTES = 4  # per parameter
_CHECKPOINT_BYTES = 12  # per parameter: the weight, and AdamW's two moments


@dataclass(frozen=True)
class PlannedPhase(Result):
    """A phase of a planned run.

    Attributes:
        sequence_length: The maximum tokens of an instance.
        sequences: The sequences of an update; None if a batch has a number of tokens (`train.batch_tokens`).
        updates: The number of updates.
        tokens_per_update: The tokens of an update, if all sequences have the maximum length.
        tokens: The tokens of the phase, if all sequences have the maximum length.
        epochs: The passes over the corpus.
        seconds: The estimated seconds; None if they were not measured.
    """

    sequence_length: int
    sequences: int | None
    updates: int
    tokens_per_update: int
    tokens: int
    epochs: float
    seconds: float | None


@dataclass(frozen=True)
class PretrainPlan(Result):
    """The plan of a pre-training run.

    Attributes:
        phases: The phases.
        updates: The number of updates.
        tokens: The tokens of all phases, if all sequences have the maximum length.
        epochs: The passes over the corpus.
        corpus_tokens: The tokens of the corpus.
        parameters: The number of trained parameters.
        seconds: The estimated seconds on this machine, without evaluations; None if they were not measured.
        seconds_are: The basis of that estimate.
        memory_bytes: The bytes of weights, gradients, and optimizer state, and about those of the activations.
        disk_bytes: The maximum bytes of the model and the checkpoints.
    """

    display_fields: ClassVar = ("phases", "updates", "tokens", "epochs", "seconds", "memory_bytes")

    phases: list[PlannedPhase]
    updates: int
    tokens: int
    epochs: float
    corpus_tokens: int
    parameters: int
    seconds: float | None
    seconds_are: str
    memory_bytes: int
    disk_bytes: int


def plan_pretraining(
    data: Shards | str | Path,
    *,
    preset: str | None = None,
    recipe: str | Path | None = None,
    minutes: float | None = None,
    settings: Changes = (),
    benchmark: bool = True,
    **keywords: Unpack[PretrainKeywords],
) -> PretrainPlan:
    """Compute what a pre-training run with these arguments of `pretrain` takes; nothing is trained or written.

    Args:
        data: The folder that `prepare` has written, or its Shards.
        preset: The model's sizes, as in `pretrain`.
        recipe: A YAML file of settings.
        minutes: The minutes of the run, which the measured speed turns into updates.
        settings: Settings by dotted or nested names, or as "train.max_steps=500".
        benchmark: Estimate the seconds of an update on this machine, which takes some; otherwise the plan has no
            time. A plan of `minutes` is always measured.
        keywords: Settings by their last names, such as `max_steps=500`.

    Returns:
        The plan. The published run of BERT (Devlin et al. 2019, A.2) has 256 sequences of 512 tokens, 131,072, in
        each of 1,000,000 updates: 1.31e11 tokens, or 4.26e10 with nine tenths of the updates at 128 tokens.

    Raises:
        InputError: The data or a setting is invalid.
    """
    shards = data if isinstance(data, Shards) else Shards.open(data)
    run_type = resolve_settings.settings_type_of_arguments(preset, recipe, settings, keywords)
    changes = resolve(run_type, settings, keywords, plan_pretraining)
    if minutes is not None:
        changes["train.max_minutes"] = minutes
    if not (preset or recipe):
        preset = resolve_settings.choose_preset(changes, shards.tokenizer)
    run_settings = resolve_settings.new_settings(preset, recipe, changes, shards.tokenizer)
    check_lengths(run_settings)
    return _plan(PretrainData.from_shards(shards, run_settings), benchmark=benchmark)


def _plan(data: PretrainData, *, benchmark: bool) -> PretrainPlan:
    settings, train = data.settings, data.settings.train
    data.log_instances()
    seconds_per_update: list[float | None] = [None] * len(data.phase_lengths)
    basis = "not measured"
    if benchmark or train.max_minutes is not None:
        estimates = [
            estimate_update_seconds(_with_length(settings, length), data.fill_ratio(stream, length))
            for (length, _), stream in zip(data.phase_lengths, data.streams, strict=True)
        ]
        seconds_per_update, basis = [seconds for seconds, _ in estimates], estimates[-1][1]
    phases = []
    for (length, _), stream, updates, seconds in zip(
        data.phase_lengths, data.streams, _updates(data, seconds_per_update), seconds_per_update, strict=True
    ):
        accumulation = train.gradient_accumulation_steps
        sequences = None if train.batch_tokens is not None else train.batch_size * accumulation
        tokens = (train.batch_tokens or train.batch_size * length) * accumulation
        phases.append(
            PlannedPhase(
                sequence_length=length,
                sequences=sequences,
                updates=updates,
                tokens_per_update=tokens,
                tokens=updates * tokens,
                epochs=updates / data.count_updates_per_epoch(stream),
                seconds=None if seconds is None else seconds * updates,
            )
        )
    parameters = count_trained_parameters(settings)
    num_checkpoints = train.save_total_limit + 1  # an old one is deleted after the new one is complete
    all_seconds = [phase.seconds for phase in phases if phase.seconds is not None]
    return PretrainPlan(
        phases=phases,
        updates=sum(phase.updates for phase in phases),
        tokens=sum(phase.tokens for phase in phases),
        epochs=sum(phase.epochs for phase in phases),
        corpus_tokens=data.shards.counts["tokens"],
        parameters=parameters,
        seconds=sum(all_seconds) if all_seconds else None,
        seconds_are=basis,
        memory_bytes=hardware.training_bytes(parameters) + _activation_bytes(settings),
        disk_bytes=parameters * (_WEIGHT_BYTES + num_checkpoints * _CHECKPOINT_BYTES),
    )


def _activation_bytes(settings: PretrainSettings) -> int:
    """Return about how many bytes the backward pass needs of a batch whose sequences have the maximum length.

    A layer keeps 18H + 4F bytes a token in bf16 (Korthikanti et al. 2022, section 4.1, without the attention
    weights, which no kernel stores), and twice as many in fp32. Each token to predict has V logits in fp32.
    """
    config, data, train = settings.model, settings.data, settings.train
    length = max(data.sequence_length, data.long_sequence_length or 0)
    tokens = train.batch_tokens or train.batch_size * length
    bytes_per_number = 1 if ComputeContext.for_training(train).precision == "bf16" else 2
    layer = (18 * config.hidden_size + 4 * config.intermediate_size) * bytes_per_number
    logits = 1.0 if config.causal else data.mlm_probability
    return int(tokens * (config.num_hidden_layers * layer + logits * config.vocab_size * 4))


def _with_length(settings: PretrainSettings, length: int) -> PretrainSettings:
    """Return the settings with batches of this length in the first phase."""
    train = settings.train
    changes: dict[str, Any] = {
        "data.sequence_length": length,
        "data.long_sequence_length": None,
        "data.long_max_predictions_per_seq": None,
    }
    if train.batch_tokens is not None:
        changes |= {"train.batch_size": max(1, train.batch_tokens // length), "train.batch_tokens": None}
    return settings.changed(changes)


def _updates(data: PretrainData, seconds_per_update: list[float | None]) -> list[int]:
    """Return the number of updates of each phase."""
    train, ratios = data.settings.train, [ratio for _, ratio in data.phase_lengths]
    if train.max_minutes is None:
        total = compute_setup.updates_in_budget(train, data.updates_per_epoch, data.tokens_per_update)
    else:
        mean = sum(r * (seconds or 0.0) for r, seconds in zip(ratios, seconds_per_update, strict=True))
        total = max(1, int(60 * train.max_minutes / mean))
        total = min(total, train.max_steps or total)
    long_updates = [max(1, round(total * ratio)) for ratio in ratios[1:]]
    return [max(0, total - sum(long_updates)), *long_updates]
