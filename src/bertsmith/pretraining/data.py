"""The data of a pre-training run: its documents, and the streams of instances of each phase."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bertsmith.corpus.checks.structure import FULL_SENTENCE_SETTINGS, format_settings
from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.instances.batches import InstanceStream, token_counts
from bertsmith.instances.epoch_plan import check_batch_tokens
from bertsmith.instances.holdout_split import VALIDATION_SEED, DocumentSplit
from bertsmith.instances.settings import DataSettings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tokenizer.script_coverage import JOINERS
from bertsmith.tokenizer.text_check import TextCheck
from bertsmith.training.data_loader import Phase

logger = logging.getLogger(__name__)

_EVALUATION_BATCH_SIZE = 64
_SAMPLE_TOKENS = 100_000  # by which the script is recognized
_MAX_LABEL_IMBALANCE = 0.1  # of the fraction of IsNext pairs; 0.45 is usual


@dataclass(frozen=True)
class PretrainData:
    """The corpus of a run.

    Attributes:
        shards: The prepared documents.
        split: The training and the validation documents.
        settings: The settings of the run.
    """

    shards: Shards
    split: DocumentSplit
    settings: PretrainSettings

    @classmethod
    def from_shards(cls, shards: Shards, settings: PretrainSettings) -> PretrainData:
        """Split the documents; log the split, and what the tokenizer does not read or loses."""
        check = TextCheck(shards.counts["tokens"], shards.counts.get("unknown", 0))
        check.characters += _first_characters(shards)
        check.log(shards.tokenizer)
        split = DocumentSplit.from_settings(shards, settings.data)
        for line in split.describe(shards, settings.data):
            logger.info("%s", line)
        return cls(shards, split, settings)

    @property
    def phase_lengths(self) -> list[tuple[int, float]]:
        """The sequence length and the fraction of the updates of each phase (Devlin et al. 2019, A.2)."""
        data = self.settings.data
        if data.long_sequence_length is None:
            return [(data.sequence_length, 1.0)]
        return [
            (data.sequence_length, 1 - data.long_sequence_ratio),
            (data.long_sequence_length, data.long_sequence_ratio),
        ]

    @cached_property
    def token_counts(self) -> IntArray:
        """The number of occurrences of each token in the training documents, [V]."""
        return token_counts(self.shards, self.split.train, self.shards.tokenizer.vocab_size)

    @cached_property
    def streams(self) -> list[InstanceStream]:
        """The training instances of each phase."""
        batch_tokens = self.settings.train.batch_tokens
        return [
            create_stream(self.shards, self.split.train, self.settings, length, batch_tokens, phase=phase)
            for phase, (length, _) in enumerate(self.phase_lengths)
        ]

    @property
    def phases(self) -> list[Phase]:
        """The phases of the training."""
        batch_size = self.settings.train.batch_size
        return [
            Phase(stream, ratio, batch_size)
            for stream, (_, ratio) in zip(self.streams, self.phase_lengths, strict=True)
        ]

    @cached_property
    def updates_per_epoch(self) -> float:
        """The number of updates in an epoch of the first phase."""
        return self.count_updates_per_epoch(self.streams[0])

    def count_updates_per_epoch(self, stream: InstanceStream) -> float:
        """Return the number of updates in an epoch of a phase."""
        train = self.settings.train
        if train.batch_tokens is None:
            return stream.size(0) / (train.batch_size * train.gradient_accumulation_steps)
        return len(stream.fill_stats(0, train.batch_size).tokens) / train.gradient_accumulation_steps

    def fill_ratio(self, stream: InstanceStream, length: int) -> float:
        """Return the tokens of a phase's epoch, as a ratio of those of full batches."""
        train = self.settings.train
        tokens = float(stream.fill_stats(0, train.batch_size).tokens.sum())
        per_update = (train.batch_tokens or train.batch_size * length) * train.gradient_accumulation_steps
        return tokens / (self.count_updates_per_epoch(stream) * per_update)

    @cached_property
    def tokens_per_update(self) -> float:
        """The mean number of tokens in an update, over all phases."""
        train = self.settings.train
        return train.gradient_accumulation_steps * sum(
            ratio * float(stream.fill_stats(0, train.batch_size).tokens.mean())
            for stream, (_, ratio) in zip(self.streams, self.phase_lengths, strict=True)
        )

    @cached_property
    def validation_batches(self) -> dict[str, list[Any]]:
        """The validation batches by the prefix of their metrics: "", and "long_" for the second phase's length.

        Validation text is not corrupted, so that all runs on a corpus are evaluated on the same text.
        """
        data = self.settings.data.model_copy(update={"corruption": "none"})
        settings = self.settings.model_copy(update={"data": data})
        documents, batches = self.split.validation, {}
        for phase, (length, _) in enumerate(self.phase_lengths):
            if not len(documents):
                continue
            prefix = ("", "long_")[phase]
            stream = create_stream(
                self.shards, documents, settings, length, seed=VALIDATION_SEED, phase=phase
            )
            if size := min(stream.size(0), data.max_validation_instances):
                starts = range(0, size, _EVALUATION_BATCH_SIZE)
                batches[prefix] = [
                    stream.batch(0, start, min(start + _EVALUATION_BATCH_SIZE, size)) for start in starts
                ]
        return batches

    @cached_property
    def batch_report(self) -> dict[str, float | int]:
        """Statistics of the batches of the first epoch."""
        return self.streams[0].fill_stats(0, self.settings.train.batch_size).report

    def log_instances(self) -> None:
        """Log statistics of the instances and batches of the first epoch; raise InputError if there are none."""
        stream = self.streams[0]
        if not stream.size(0):
            message = "these documents are too short for any instance"
            hint = (
                f"give longer documents, or use {option('data.sentence_task', 'none')} and "
                f"{option('data.instances', 'full_sentences')}"
            )
            raise InputError("no_instances", message, location=self.shards.folder, hint=hint)
        counts = stream.plan(0).counts
        _warn_about_labels(counts, self.settings.data)
        if counts["tokens_left_out"]:
            logger.info("%s left out of every instance", pluralize(counts["tokens_left_out"], "token"))
        report = self.batch_report
        logger.info(
            "%s per epoch in %s, filled to %s; no padding (padded batches would be %s padding)",
            pluralize(counts["instances"], "instance"),
            pluralize(int(report["number"]), "batch", "batches"),
            f"{report['fill_mean']:.1%}",
            f"{report['padding_if_padded']:.1%}",
        )


def create_stream(
    shards: Shards,
    documents: IntArray,
    settings: PretrainSettings,
    length: int,
    batch_tokens: int | None = None,
    seed: int | None = None,
    *,
    phase: int = 0,
) -> InstanceStream:
    """Create the stream of instances of documents.

    Args:
        shards: The prepared documents.
        documents: The indices of the documents.
        settings: The settings of the run.
        length: The maximum number of tokens of an instance.
        batch_tokens: The maximum number of tokens in a batch; None: batches have a number of instances.
        seed: The seed; None: `train.seed`.
        phase: The index of the phase.
    """
    seed = settings.train.seed if seed is None else seed
    tokenizer, data = shards.tokenizer, settings.data.of_phase(phase)
    return InstanceStream(
        shards, documents, tokenizer, data, length=length, seed=seed, batch_tokens=batch_tokens
    )


def check_lengths(settings: PretrainSettings) -> None:
    """Raise InputError if instances are longer than the model's or the batches' maximum length."""
    length = max(settings.data.sequence_length, settings.data.long_sequence_length or 0)
    if length > settings.model.max_length:
        message = f"sequences of {length} tokens do not fit {settings.model.max_length} positions"
        alternative = "" if settings.base else ", or raise model.max_position_embeddings"
        hint = f"lower data.sequence_length{alternative}"
        raise InputError("sequence_length_too_large", message, argument="data.sequence_length", hint=hint)
    check_batch_tokens(settings.train.batch_tokens, length)


def _first_characters(shards: Shards) -> Counter[str]:
    """Return the counts of the characters in the first tokens, and of the joiners that they lack."""
    ids = shards.take(np.arange(min(shards.counts["tokens"], _SAMPLE_TOKENS)))
    tokens = shards.tokenizer.tokens
    characters = Counter("".join(tokens[i] for i in ids.tolist()))
    characters[JOINERS[0]] += shards.counts.get("joiners_lost", 0)
    return characters


def _warn_about_labels(counts: Mapping[str, int], data: DataSettings) -> None:
    """Log a warning, with the cause, if there are far more or fewer IsNext than NotNext pairs."""
    if "is_next" not in counts:
        return
    ratio = counts["is_next"] / max(1, counts["instances"])
    balance = "" if data.nsp_balance else "set data.nsp_balance=true, "
    if ratio < 0.5 - _MAX_LABEL_IMBALANCE:
        logger.warning(
            "%s of the pairs are IsNext: %s of %s are NotNext because a single sentence was left, which has no "
            "next one (%s of %s have only one); %suse longer documents, or train without pairs: %s",
            f"{ratio:.0%}",
            f"{counts['not_next_of_single_sentences']:,}",
            pluralize(counts["instances"], "pair"),
            f"{counts['documents_of_one_fragment']:,}",
            pluralize(counts["documents"], "document"),
            balance,
            format_settings(FULL_SENTENCE_SETTINGS),
        )
    elif ratio > 0.5 + _MAX_LABEL_IMBALANCE and data.nsp_sampling == "same_document":
        logger.warning(
            "%s of the pairs are IsNext: short documents have no sentences before or after such a pair that "
            "could be its NotNext; %suse longer documents, or data.nsp_sampling=other_document",
            f"{ratio:.0%}",
            balance,
        )
