"""Which positions are predicted, and what stands in their place: drawn anew for every (seed, epoch, instance).

Devlin et al. 2019, section 3.1: a share of the tokens is chosen, exactly round(share · n) of the n that are no
special tokens and at least one; of those 80 % become [MASK], 10 % a random token, 10 % stay. Whole words and
spans (`span_masking.py`) choose as many or, where the next word would not fit any more, fewer. What becomes of a
chosen token is drawn for each token, as in the original, with spans for each span (Joshi et al. 2020, section
3.1).

BERT's release (`create_masked_lm_predictions`) differs in three points, each a setting: n counts [CLS] and [SEP],
any other token may be chosen, and a random token may be any of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.errors import InputError
from bertsmith.instances.epoch_plan import ranges
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.span_masking import SpanLengths, WordRuns, choose_spans, choose_words

WordStarts = Callable[[Ints], NDArray[np.bool_]]
"""ids [N] → bool [N]: which pieces in a row begin a word."""

# A sort key holds, from the top: sequence 20 bits, whether it is special, 30 random bits, position 13 bits.
_POSITION_BITS, _RANDOM_BITS = np.uint64(13), np.uint64(30)
_SPECIAL_BIT = np.uint64(43)
_SEQUENCE_SHIFT = np.uint64(44)
_MOST_SEQUENCES = 1 << 20
_LONGEST = 1 << 13  # tokens; draws with counters below it choose, those above say what becomes of the chosen
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class Masker:
    """How masks are drawn.

    share: of the tokens to choose; split: shares of those that become [MASK], a random token, or stay;
    special: bool [V], tokens that are never chosen and never put in place of another; word_starts: needed for
    whole words and spans; most: predictions an instance never has more of, if there is a limit; counts_special:
    whether the share is one of all tokens; puts_special: whether a random token may be special, too; closed:
    bool [V], the only tokens that are never chosen, if those are not the special ones.
    """

    share: float
    split: tuple[float, float, float]
    mask_id: int
    special: NDArray[np.bool_]
    seed: int
    kind: Literal["token", "whole_word", "span"] = "token"
    word_starts: WordStarts | None = None
    most: int | None = None
    spans: SpanLengths = field(default_factory=SpanLengths)
    counts_special: bool = False
    puts_special: bool = False
    closed: NDArray[np.bool_] | None = None
    _random: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        random = np.arange(len(self.special)) if self.puts_special else np.flatnonzero(~self.special)
        object.__setattr__(self, "_random", random)
        if self.kind != "token" and self.word_starts is None:
            raise ValueError(f"{self.kind} masks need word_starts")

    @classmethod
    def of(
        cls,
        settings: DataSettings,
        mask_id: int,
        special: NDArray[np.bool_],
        frame: Sequence[int],
        word_starts: WordStarts | None,
        seed: int,
    ) -> Masker:
        """The masker that a user's settings ask for; frame: the ids of [CLS] and [SEP]."""
        framing = np.zeros_like(special)
        framing[list(frame)] = True
        return cls(
            settings.mask_share,
            settings.mask_split,
            mask_id,
            special,
            seed,
            settings.masking,
            word_starts,
            settings.predictions_max,
            SpanLengths(settings.span_lengths, settings.span_p, settings.span_max),
            settings.mask_share_of == "all",
            settings.random_tokens == "all",
            framing if settings.mask_candidates == "all" else None,
        )

    def apply(
        self,
        ids: Ints,
        lengths: Ints,
        instances: Ints,
        epoch: int,
        positions: Ints | None = None,
        *,
        barred: NDArray[np.bool_] | None = None,
        begins: NDArray[np.bool_] | None = None,
    ) -> tuple[Ints, Ints]:
        """Mask sequences that lie end to end, each of 1 to 8,192 tokens.

        ids: [N]; lengths: [B]; instances: [B], each sequence's number in its epoch; positions: [N], each token's
        place in its sequence, if known; barred: [N], rows that are never chosen and no part of any count, as
        inserted tokens; begins: [N], which rows begin a word, where not as `word_starts` says. Returns the masked
        copy of ids and the rows to predict [M] in ascending order; their labels are ids[rows].
        """
        if len(lengths) > _MOST_SEQUENCES:
            raise ValueError(f"at most {_MOST_SEQUENCES} sequences at a time")
        starts = np.cumsum(lengths) - lengths
        if positions is None:
            positions = ranges(np.zeros_like(lengths), lengths)
        closed, wanted = self._wanted(ids, starts, lengths, barred)
        keys = rng.bits(self.seed, "mask", epoch, instances)
        if self.kind == "token":
            owner, position = _chosen_tokens(keys, positions, closed, lengths, wanted)
            rows, together = starts[owner] + position, position
        else:
            assert self.word_starts is not None
            words = WordRuns.of(
                self.word_starts(ids) if begins is None else begins, closed, positions, starts
            )
            rows, leader, owner = self._chosen_words(words, keys, positions, wanted)
            together = positions[leader]
            position = positions[rows]
        return self._put(ids, rows, keys[owner], position, together), rows

    def _wanted(
        self, ids: Ints, starts: Ints, lengths: Ints, barred: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.bool_], Ints]:
        """[N] the tokens that are never chosen; [B] how many others should be."""
        try:
            special = self.special[ids]
        except IndexError:
            raise unknown_id(int(ids.max()), len(self.special)) from None
        closed = special if self.closed is None else self.closed[ids]
        if barred is not None:
            special, closed = special | barred, closed | barred
        available = lengths - np.add.reduceat(closed, starts, dtype=np.int64)
        if self.counts_special:
            counted = lengths if barred is None else lengths - np.add.reduceat(barred, starts, dtype=np.int64)
        elif self.closed is None:
            counted = available
        else:
            counted = lengths - np.add.reduceat(special, starts, dtype=np.int64)
        wanted = np.minimum(np.maximum(np.rint(self.share * counted), 1), available).astype(np.int64)
        return closed, wanted if self.most is None else np.minimum(wanted, self.most)

    def _put(self, ids: Ints, rows: Ints, keys: NDArray[np.uint64], position: Ints, together: Ints) -> Ints:
        """ids with something else in the chosen rows; `together`: the position whose draw decides what."""
        draw = rng.further(keys, position + _LONGEST)
        kind = (draw if together is position else rng.further(keys, together + _LONGEST)) >> _HALF
        token = ((draw & _LOW) * np.uint64(len(self._random))) >> _HALF
        to_mask, to_random = (
            np.uint64(round(self.split[0] * 2**32)),
            np.uint64(round(sum(self.split[:2]) * 2**32)),
        )
        put = np.where(kind < to_random, self._random[token.view(np.int64)], ids[rows])
        put[kind < to_mask] = self.mask_id
        masked = ids.copy()
        masked[rows] = put
        return masked

    def _chosen_words(
        self, words: WordRuns, keys: NDArray[np.uint64], positions: Ints, wanted: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Chosen rows in ascending order; for each the row whose draw decides; its sequence."""
        draw = rng.further(keys[words.owner], positions[words.first])
        random = ((draw >> np.uint64(34)) << _POSITION_BITS) | positions[words.first].astype(np.uint64)
        order = np.argsort((words.owner.astype(np.uint64) << _SEQUENCE_SHIFT) | random)
        if self.kind == "whole_word":
            chosen = choose_words(words, order, wanted, self.most)
            leaders = words.first[chosen]
        else:
            low = (draw & np.uint64(2**34 - 1)).astype(np.float64) * 2.0**-34
            lengths_ = self.spans.of(low)
            chosen, leaders = choose_spans(words, order, wanted, lengths_, self.spans.longest, self.most)
        size = words.size[chosen]
        rows = ranges(words.first[chosen], size)
        leader = rows if self.kind == "whole_word" else np.repeat(leaders, size)
        return rows, leader, np.repeat(words.owner[chosen], size)


def _chosen_tokens(
    keys: NDArray[np.uint64], positions: Ints, closed: NDArray[np.bool_], lengths: Ints, wanted: Ints
) -> tuple[Ints, Ints]:
    """For each chosen token its sequence and its position there, in ascending order: per sequence the `wanted`
    with the lowest random bits. One sort of one array of keys does it for all."""
    key = rng.further(np.repeat(keys, lengths), positions)
    key >>= np.uint64(64) - _RANDOM_BITS
    key <<= _POSITION_BITS
    key |= positions.view(np.uint64)
    key |= closed.astype(np.uint64) << _SPECIAL_BIT
    sequence = np.arange(len(lengths), dtype=np.uint64) << _SEQUENCE_SHIFT
    key |= np.repeat(sequence, lengths)
    key.sort()
    key = key[ranges(np.cumsum(lengths) - lengths, wanted)]
    owner = key >> _SEQUENCE_SHIFT
    key &= np.uint64((1 << 13) - 1)
    place = (owner << _POSITION_BITS) | key
    place.sort()
    position = (place & np.uint64((1 << 13) - 1)).view(np.int64)
    return (place >> _POSITION_BITS).view(np.int64), position


def unknown_id(token: int, vocab_size: int) -> InputError:
    """What to raise for a token id of the data that the vocabulary does not have."""
    return InputError(
        f"the prepared data has the token id {token:,}, and its vocabulary ends at {vocab_size - 1:,}",
        "prepare the data again, or copy the folder from its source again",
    )
