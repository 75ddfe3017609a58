"""Plan and masks → packed batches: any batch of any epoch from two integers, so that a run resumes anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from bertsmith.data.masks import Masker
from bertsmith.data.plan import Corpus, Plan, check_documents, plan_pairs, ranges
from bertsmith.errors import InputError
from bertsmith.packed import Packed
from bertsmith.settings import Settings

Ints = NDArray[np.int64]
_Share = Annotated[float, Field(ge=0, le=1)]


class DataSettings(Settings):
    """How text becomes instances."""

    sequence_length: int = Field(
        128, ge=8, le=8192, description="tokens an instance may have, specials included"
    )
    long_sequence_length: int | None = Field(
        None, ge=8, le=8192, description="tokens an instance may have in the second phase; none: one phase"
    )
    long_share: float = Field(0.1, gt=0, lt=1, description="share of the steps that the second phase takes")
    short_share: float = Field(
        0.1, ge=0, le=1, description="share of instances with a random shorter target length"
    )
    masking: Literal["token"] = Field("token", description="what is masked together: token")
    mask_share: float = Field(0.15, gt=0, lt=1, description="share of the tokens to predict")
    mask_split: tuple[_Share, _Share, _Share] = Field(
        (0.8, 0.1, 0.1), description="of those: share that becomes [MASK], a random token, or stays"
    )
    sentence_task: Literal["nsp"] = Field("nsp", description="what is asked of a pair: nsp (does B follow A)")
    held_out: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="share of the documents kept for evaluation, chosen by hash of their text",
    )
    held_out_instances: int = Field(
        1024, ge=1, description="instances of the held-out documents to evaluate on"
    )

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> DataSettings:
        if abs(sum(self.mask_split) - 1) > 1e-6:
            raise ValueError(f"mask_split {list(self.mask_split)} does not sum to 1")
        return self


class TokenShards(Corpus, Protocol):
    """What batches need of token shards beyond the plan's ends."""

    hashes: NDArray[np.uint64]  # [D]

    def take(self, positions: Ints) -> Ints:
        """The ids at token positions of the whole corpus."""
        ...


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that frame an instance, and bool [V] of every special one."""

    cls: int
    sep: int
    mask: int
    special: NDArray[np.bool_]


@dataclass(frozen=True)
class PairBatch:
    """Masked segment pairs.

    rows: long [M], the rows of `packed` to predict; labels: long [M], what stood there; pair_labels: long [B],
    0 where B follows A.
    """

    packed: Packed
    rows: Tensor
    labels: Tensor
    pair_labels: Tensor
    epoch: int
    first: int

    @property
    def counts(self) -> dict[str, int]:
        """What each part of the loss is a mean over."""
        return {"mlm": len(self.rows), "nsp": len(self.pair_labels)}

    @property
    def tokens(self) -> int:
        """Tokens in the batch, special ones included."""
        return len(self.packed.tokens)

    @property
    def place(self) -> str:
        """Which instances these are, for messages."""
        return f"epoch {self.epoch}, instances {self.first} to {self.first + len(self.pair_labels) - 1}"

    def to(self, device: torch.device | str) -> PairBatch:
        """The same on another device."""
        if torch.device(device) == self.rows.device:
            return self
        return PairBatch(
            self.packed.to(device),
            self.rows.to(device),
            self.labels.to(device),
            self.pair_labels.to(device),
            self.epoch,
            self.first,
        )


class PairStream:
    """Every epoch's segment pairs of some documents: plans made once an epoch, masks an instance."""

    def __init__(
        self,
        shards: TokenShards,
        documents: Ints,
        ids: SpecialIds,
        settings: DataSettings,
        *,
        length: int,
        seed: int,
    ) -> None:
        self._shards, self._documents, self._ids = shards, documents, ids
        self._settings, self._length, self._seed = settings, length, seed
        self._masker = Masker(settings.mask_share, settings.mask_split, ids.mask, ids.special, seed)
        self._plans: dict[int, Plan] = {}

    def plan(self, epoch: int) -> Plan:
        """The epoch's plan; the last two are kept, since workers stand on either side of an epoch's end."""
        plan = self._plans.get(epoch)
        if plan is None:
            plan = plan_pairs(
                self._shards,
                self._documents,
                length=self._length,
                seed=self._seed,
                epoch=epoch,
                short_share=self._settings.short_share,
            )
            self._plans = {k: v for k, v in self._plans.items() if abs(k - epoch) <= 1} | {epoch: plan}
        return plan

    def size(self, epoch: int) -> int:
        """Instances in the epoch."""
        return len(self.plan(epoch))

    def mean_tokens(self) -> float:
        """Tokens an instance has on average, special ones included."""
        plan = self.plan(0)
        return plan.tokens / max(1, len(plan))

    def batch(self, epoch: int, start: int, stop: int) -> PairBatch:
        """Instances [start, stop) of the epoch, masked and packed; a pure function of its arguments."""
        plan = self.plan(epoch)
        rows = slice(start, min(stop, len(plan)))
        a, b = plan.a_length[rows], plan.b_length[rows]
        ids, segments, lengths = framed_pairs(
            self._shards, plan.a_start[rows], a, plan.b_start[rows], b, self._ids
        )
        masked, predicted = self._masker.apply(ids, lengths, np.arange(start, start + len(a)), epoch)
        return PairBatch(
            Packed.of_flat(torch.from_numpy(masked), torch.from_numpy(segments), torch.from_numpy(lengths)),
            torch.from_numpy(predicted),
            torch.from_numpy(ids[predicted]),
            torch.from_numpy(plan.label[rows].copy()),
            epoch,
            start,
        )


def framed_pairs(
    shards: TokenShards, a_start: Ints, a_length: Ints, b_start: Ints, b_length: Ints, ids: SpecialIds
) -> tuple[Ints, Ints, Ints]:
    """[CLS] A [SEP] B [SEP] for each row, laid end to end: ids [N], segments [N], lengths [B]."""
    lengths = a_length + b_length + 3
    starts = np.cumsum(lengths) - lengths
    first_sep, last = starts + 1 + a_length, starts + lengths - 1
    row = np.repeat(np.arange(len(lengths)), lengths)
    column = np.arange(len(row)) - starts[row]
    in_b = column > a_length[row] + 1
    source = np.where(in_b, b_start[row] + column - a_length[row] - 2, a_start[row] + column - 1)
    frame = np.zeros(len(row), dtype=bool)
    frame[starts] = frame[first_sep] = frame[last] = True
    tokens = np.empty(len(row), dtype=np.int64)
    tokens[~frame] = shards.take(source[~frame])
    tokens[starts], tokens[first_sep], tokens[last] = ids.cls, ids.sep, ids.sep
    return tokens, in_b.astype(np.int64), lengths


def split_documents(hashes: NDArray[np.uint64], held_out: float) -> tuple[Ints, Ints]:
    """Documents to train on and documents held out: those whose hash falls into the lowest share.

    Equal documents fall on the same side, and a document keeps its side when others come or go. With a share
    above 0 at least those of the two lowest hashes are held out and those of the two highest kept, since
    pairs need two documents.
    """
    if held_out == 0:
        check_documents(len(hashes))
        return np.arange(len(hashes)), np.empty(0, dtype=np.int64)
    different = np.unique(hashes)
    if len(different) < 4:
        raise InputError(
            f"different documents: {len(different)}; two documents to train on and two to hold out are needed",
            "give more documents (a blank line stands between two), or set data.held_out=0",
        )
    out = hashes < np.uint64(min(held_out * 2.0**64, 2.0**64 - 2048))
    out |= hashes <= different[1]
    out &= hashes < different[-2]
    return np.flatnonzero(~out), np.flatnonzero(out)


def token_counts(shards: TokenShards, documents: Ints, vocab_size: int) -> Ints:
    """How often each token stands in these documents, [V]: the unigram model of the corpus."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    before = np.concatenate([[0], shards.sentence_ends])
    bounds = before[shards.document_sentences]
    for some in np.array_split(documents, max(1, len(documents) // 1000)):
        starts, ends = bounds[some], bounds[some + 1]
        counts += np.bincount(shards.take(ranges(starts, ends - starts)), minlength=vocab_size)
    return counts


def special_ids(cls: int, sep: int, mask: int, specials: Sequence[int], vocab_size: int) -> SpecialIds:
    """`SpecialIds` from a tokenizer's numbers."""
    special = np.zeros(vocab_size, dtype=bool)
    special[list(specials)] = True
    return SpecialIds(cls, sep, mask, special)
