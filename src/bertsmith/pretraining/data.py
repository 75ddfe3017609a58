"""What a pre-training run draws from: the two sides of the corpus, and the streams of instances of each phase."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.diagnostics import FULL_SENTENCE_SETTINGS, format_settings, unknown_token_warnings
from bertsmith.corpus.shards import Shards
from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.instances.batches import InstanceStream, special_token_ids_of, token_counts
from bertsmith.instances.cooccurrence_embeddings import compute_cooccurrence_embeddings
from bertsmith.instances.holdout_split import VALIDATION_SEED, DocumentSplit
from bertsmith.instances.word_boundaries import word_start_function
from bertsmith.pretraining.pretrained_vectors import token_vectors
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.training.data_loader import Phase

logger = logging.getLogger(__name__)

_EVALUATION_BATCH = 64
_UNEVEN = 0.1  # how far the share of IsNext may be from a half before a warning is logged; 0.45 is usual


@dataclass(frozen=True)
class Source:
    """The two sides of the corpus, and the streams of instances that a run draws from, each made once."""

    shards: Shards
    split: DocumentSplit
    chosen: PretrainSettings

    @classmethod
    def of(cls, shards: Shards, chosen: PretrainSettings) -> Source:
        """Split the documents, and log how, and where the tokenizer does not know much of the text."""
        for sentence in unknown_token_warnings(shards.counts):
            logger.warning("%s", sentence)
        split = DocumentSplit.from_settings(shards, chosen.data)
        for sentence in split.describe(shards, chosen.data):
            logger.info("%s", sentence)
        return cls(shards, split, chosen)

    @property
    def lengths(self) -> list[tuple[int, float]]:
        """Tokens of a sequence in each phase, and the phase's share of the updates: one phase of short sequences,
        and a second of long ones where asked (Devlin et al. 2019, A.2)."""
        data = self.chosen.data
        if data.long_sequence_length is None:
            return [(data.sequence_length, 1.0)]
        return [
            (data.sequence_length, 1 - data.long_sequence_ratio),
            (data.long_sequence_length, data.long_sequence_ratio),
        ]

    @cached_property
    def counts(self) -> IntArray:
        """How often each token occurs in the training documents, [V]."""
        return token_counts(self.shards, self.split.train, self.shards.tokenizer.vocab_size)

    def vectors(self) -> list[Callable[[int], NDArray[np.float32]]]:
        """What makes first vectors of the tokens by their width, [V, width], as the settings ask: of the tokens
        near each in the training documents, and over these a file's."""
        start, tokenizer = self.chosen.start, self.shards.tokenizer

        def of_neighbours(width: int) -> NDArray[np.float32]:
            logger.info("counting which tokens occur near each other: their first vectors depend on it")
            seed = self.chosen.train.seed
            return compute_cooccurrence_embeddings(
                self.shards, self.split.train, tokenizer.vocab_size, width, seed
            )

        def of_file(width: int) -> NDArray[np.float32]:
            return token_vectors(start.token_vectors, tokenizer, width)

        asked = {of_neighbours: start.tokens == "neighbours", of_file: bool(start.token_vectors)}
        return [made for made, wanted in asked.items() if wanted]

    @cached_property
    def streams(self) -> list[InstanceStream]:
        """The training instances of each phase."""
        split, chosen = self.split, self.chosen
        budget = chosen.train.batch_tokens
        return [instances_of(self.shards, split.train, chosen, length, budget) for length, _ in self.lengths]

    @property
    def phases(self) -> list[Phase]:
        """The streams with their shares of the progress."""
        size = self.chosen.train.batch_size
        return [
            Phase(stream, share, size) for stream, (_, share) in zip(self.streams, self.lengths, strict=True)
        ]

    @property
    def _as_written(self) -> PretrainSettings:
        """The settings without tokens inserted or deleted: all runs on a corpus are scored on its own text."""
        data = self.chosen.data.model_copy(update={"corruption": "none"})
        return self.chosen.model_copy(update={"data": data})

    def held_out_batches(self) -> dict[str, list[Any]]:
        """The batches that a run is judged on, by what their figures' names begin with: "" for those of the
        first phase's length, "long_" for the second's. Empty without held-out documents."""
        found = {}
        for prefix, (length, _) in zip(("", "long_"), self.lengths, strict=False):
            if not len(self.split.validation):
                continue
            stream = instances_of(
                self.shards,
                self.split.validation,
                self._as_written,
                length,
                seed=VALIDATION_SEED,
            )
            last = min(stream.size(0), self.chosen.data.max_validation_instances)
            if last:
                starts = range(0, last, _EVALUATION_BATCH)
                found[prefix] = [stream.batch(0, i, min(i + _EVALUATION_BATCH, last)) for i in starts]
        return found


def instances_of(
    shards: Shards,
    documents: IntArray,
    chosen: PretrainSettings,
    length: int,
    batch_tokens: int | None = None,
    seed: int | None = None,
) -> InstanceStream:
    """The instances of some documents as a run with these settings sees them; seed: in place of train.seed."""
    tokenizer = shards.tokenizer
    return InstanceStream(
        shards,
        documents,
        special_token_ids_of(tokenizer),
        chosen.data,
        length=length,
        seed=chosen.train.seed if seed is None else seed,
        word_starts=word_start_function(tokenizer, chosen.data),
        batch_tokens=batch_tokens,
    )


def log_instances(source: Source) -> dict[str, float | int]:
    """Log how the text became instances and batches, in the first epoch; the figures of the batches."""
    chosen, stream = source.chosen, source.streams[0]
    if not stream.size(0):
        raise InputError(
            "no_instances",
            "these documents are too short for any instance",
            location=source.shards.folder,
            hint=f"give longer documents, or set {option('data.sentence_task', 'none')} and "
            f"{option('data.instances', 'full_sentences')}",
        )
    counts = stream.plan(0).counts
    _log_labels(counts, chosen.data.uses_other_documents)
    if counts["tokens_left_out"]:
        logger.info("%s left out of every instance", pluralize(counts["tokens_left_out"], "token"))
    found = stream.fill_stats(0, chosen.train.batch_size).report
    limit = (
        f"{chosen.train.batch_tokens:,} tokens"
        if chosen.train.batch_tokens
        else "the longest instances' tokens"
    )
    logger.info(
        "%s per epoch in %s, filled to %s of %s (the emptiest to %s); no padding (padded batches would be %s "
        "padding)",
        pluralize(counts["instances"], "instance"),
        pluralize(int(found["number"]), "batch", "batches"),
        f"{found['fill_mean']:.1%}",
        limit,
        f"{found['fill_min']:.1%}",
        f"{found['padding_if_padded']:.1%}",
    )
    return found


def _log_labels(counts: dict[str, int], lends: bool) -> None:
    """Log a warning if the corpus cannot give as many IsNext as NotNext pairs.

    lends: True if NotNext's B is from another document.
    """
    if "is_next" not in counts:
        return
    share = counts["is_next"] / max(1, counts["instances"])
    if abs(share - 0.5) > _UNEVEN and not lends:
        logger.warning(
            "%s of the pairs are IsNext: many documents are too short to have a B elsewhere; "
            "data.nsp_sampling=other_document finds enough",
            f"{share:.0%}",
        )
    elif abs(share - 0.5) > _UNEVEN:
        logger.warning(
            "only %s of the pairs are IsNext: %s of %s have only one sentence, which has no next one; train "
            "without pairs: %s",
            f"{share:.0%}",
            f"{counts['documents_of_one_fragment']:,}",
            pluralize(counts["documents"], "document"),
            format_settings(FULL_SENTENCE_SETTINGS),
        )
