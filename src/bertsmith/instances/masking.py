"""Masked tokens: tokens to predict and their replacements, drawn for each (seed, epoch, instance).

Devlin et al. 2019, section 3.1: of the n tokens that are not special, max(1, round(mlm_probability · n)) are
predicted, but no more than can be masked or than `max_predictions_per_seq`. Of those 80 % become [MASK], 10 %
become a random token, and 10 % stay. With whole words and spans (`span_masking.py`) as many tokens are predicted
or, if the next word does not fit, fewer. Which of the three happens is drawn for each token, as in the original,
or for each span (Joshi et al. 2020, section 3.1).

BERT's release (`create_masked_lm_predictions`) differs in three points, each the value "all" of a setting: n
includes [CLS] and [SEP] (`mlm_probability_of`), any other token may be predicted (`maskable_tokens`), and a random
token may be any of the vocabulary (`random_tokens`).

Shapes: B sequences with N tokens, M tokens to predict, W words, a vocabulary of V tokens. The index of a token is
its index in [N]; its position is relative to the start of its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith import rng
from bertsmith.corpus.shards import BoolArray, IntArray
from bertsmith.instances.epoch_plan import concat_ranges
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.span_masking import Words, select_spans, select_words, span_length_probabilities
from bertsmith.tokenizer.tokenizer import Tokenizer

# A sort key has, from the top: sequence 20 bits, unmaskable 1 bit, random 30 bits, position 13 bits.
_POSITION_BITS, _RANDOM_BITS = np.uint64(13), np.uint64(30)
_POSITION_MASK = np.uint64(2**13 - 1)
_UNMASKABLE_BIT = np.uint64(43)
_SEQUENCE_SHIFT = np.uint64(44)
_MAX_SEQUENCES = 1 << 20
# Random numbers with the counter `position` select tokens, those with `position + _MAX_LENGTH` replace them.
_MAX_LENGTH = 1 << 13
# A random number of 64 bits that replaces a token is divided into two: the high 32 bits choose between [MASK], a
# random token, and the original token, the low 32 bits choose the random token.
_HALF_BITS = np.uint64(32)
_LOW_MASK = np.uint64(2**32 - 1)
# One that selects words and spans has 30 bits for their order, and 34 bits for the length of a span.
_SPAN_LENGTH_BITS = np.uint64(34)


@dataclass(frozen=True)
class SpecialTokenIds:
    """Ids of special tokens.

    Attributes:
        cls: The id of [CLS].
        sep: The id of [SEP].
        mask: The id of [MASK].
        is_special: bool [V], True for all special tokens.
        num_separators: The number of [SEP] between A and B.
        uses_segments: True if B has segment id 1, False if all segment ids are 0.
    """

    cls: int
    sep: int
    mask: int
    is_special: BoolArray
    num_separators: int = 1
    uses_segments: bool = True

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> SpecialTokenIds:
        """Return the special tokens of a tokenizer; raise InputError if it lacks one that instances need."""
        is_special = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
        is_special[list(tokenizer.all_special_ids)] = True
        return cls(
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.mask_token_id,
            is_special,
            max(1, tokenizer.num_separators),
            tokenizer.uses_segments,
        )


class Masker:
    """Random masks of sequences."""

    def __init__(self, settings: DataSettings, special_token_ids: SpecialTokenIds, seed: int) -> None:
        ids = special_token_ids
        self._settings, self._seed = settings, seed
        self._mask_id, self._is_special = ids.mask, ids.is_special
        self._is_cls_or_sep = np.zeros_like(ids.is_special)
        self._is_cls_or_sep[[ids.cls, ids.sep]] = True
        is_random = np.ones_like(ids.is_special) if settings.random_tokens == "all" else ~ids.is_special
        self._random_ids = np.flatnonzero(is_random)

    def apply(
        self,
        ids: IntArray,
        lengths: IntArray,
        instance_ids: IntArray,
        epoch: int,
        positions: IntArray | None = None,
        *,
        is_excluded: BoolArray | None = None,
        word_starts: BoolArray | None = None,
    ) -> tuple[IntArray, IntArray]:
        """Mask concatenated sequences of 1 to 8,192 tokens.

        Args:
            ids: int64 [N].
            lengths: int64 [B].
            instance_ids: int64 [B]; with seed and epoch, they determine each sequence's random numbers.
            epoch: The epoch.
            positions: int64 [N], each token's position in its sequence; None: computed here.
            is_excluded: bool [N], True for tokens that are never predicted and not counted, such as inserted ones.
            word_starts: bool [N], True for tokens that start a word; needed if whole words or spans are masked.

        Returns:
            The masked ids, int64 [N], and the ascending indices of the tokens to predict, int64 [M], whose labels
            are ids[indices].
        """
        if len(lengths) > _MAX_SEQUENCES:
            raise ValueError(f"at most {_MAX_SEQUENCES} sequences at a time")
        starts = np.cumsum(lengths) - lengths
        if positions is None:
            positions = concat_ranges(np.zeros_like(lengths), lengths)
        unmaskable, num_predictions = self._count_predictions(ids, starts, lengths, is_excluded)
        keys = rng.random_bits(self._seed, "mask", epoch, instance_ids)
        if self._settings.masking == "token":
            sequence, position = _select_tokens(keys, positions, unmaskable, lengths, num_predictions)
            indices, unit_position = starts[sequence] + position, position
        else:
            assert word_starts is not None
            words = Words.from_starts(word_starts, unmaskable, positions, starts)
            indices, unit_index, sequence = self._select_words(words, keys, positions, num_predictions)
            unit_position, position = positions[unit_index], positions[indices]
        return self._replace(ids, indices, keys[sequence], position, unit_position), indices

    def _count_predictions(
        self, ids: IntArray, starts: IntArray, lengths: IntArray, is_excluded: BoolArray | None
    ) -> tuple[BoolArray, IntArray]:
        """Return which tokens are never predicted, [N], and the number of tokens to predict, [B]."""
        settings = self._settings
        special = unmaskable = self._is_special[ids]
        if settings.maskable_tokens == "all":
            unmaskable = self._is_cls_or_sep[ids]
        if is_excluded is not None:
            special, unmaskable = special | is_excluded, unmaskable | is_excluded

        def count_others(mask: BoolArray) -> IntArray:
            others: IntArray = lengths - np.add.reduceat(mask, starts, dtype=np.int64)
            return others

        num_maskable = count_others(unmaskable)
        if settings.mlm_probability_of == "all":
            num_counted = lengths if is_excluded is None else count_others(is_excluded)
        else:
            num_counted = num_maskable if settings.maskable_tokens == "ordinary" else count_others(special)
        num_predictions = np.maximum(np.rint(settings.mlm_probability * num_counted), 1)
        num_predictions = np.minimum(num_predictions, num_maskable).astype(np.int64)
        if settings.max_predictions_per_seq is not None:
            num_predictions = np.minimum(num_predictions, settings.max_predictions_per_seq)
        return unmaskable, num_predictions

    def _replace(
        self, ids: IntArray, indices: IntArray, keys: rng.Bits, position: IntArray, unit_position: IntArray
    ) -> IntArray:
        """Return the ids with replacements at these indices.

        Args:
            ids: int64 [N].
            indices: The tokens to predict, int64 [M].
            keys: The random bits of the sequence of each, [M].
            position: The position of each, whose random number selects a random token, [M].
            unit_position: The position whose random number chooses between [MASK], a random token, and the
                original token, [M]: the token's own, or that of the first token of its span.
        """
        draws = rng.extend_bits(keys, position + _MAX_LENGTH)
        unit_draws = draws
        if unit_position is not position:
            unit_draws = rng.extend_bits(keys, unit_position + _MAX_LENGTH)
        choices = unit_draws >> _HALF_BITS
        random_index = ((draws & _LOW_MASK) * np.uint64(len(self._random_ids))) >> _HALF_BITS
        thresholds = np.cumsum(self._settings.replacement_probabilities[:2]) * 2**32  # choices have 32 bits
        mask_below, random_below = np.rint(thresholds).astype(np.uint64)
        random_ids = self._random_ids[random_index.view(np.int64)]
        replacements = np.where(choices < random_below, random_ids, ids[indices])
        replacements[choices < mask_below] = self._mask_id
        masked = ids.copy()
        masked[indices] = replacements
        return masked

    def _select_words(
        self, words: Words, keys: rng.Bits, positions: IntArray, num_predictions: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Select words or spans.

        Returns:
            The ascending indices of the tokens to predict; for each the index of the token whose random number
            chooses the kind of replacement (itself, or the first of its span); and its sequence. All int64 [M].
        """
        draws = rng.extend_bits(keys[words.sequence], positions[words.first])
        random = ((draws >> _SPAN_LENGTH_BITS) << _POSITION_BITS) | positions[words.first].astype(np.uint64)
        order = np.argsort((words.sequence.astype(np.uint64) << _SEQUENCE_SHIFT) | random)
        settings, max_predictions = self._settings, self._settings.max_predictions_per_seq
        if settings.masking == "whole_word":
            selected = select_words(words, order, num_predictions, max_predictions)
        else:
            uniform = (draws & np.uint64(2**34 - 1)).astype(np.float64) * 2.0**-34
            probabilities = span_length_probabilities(settings)
            span_lengths = np.searchsorted(np.cumsum(probabilities)[:-1], uniform, side="right") + 1
            selected, span_starts = select_spans(
                words, order, num_predictions, span_lengths, settings.max_span_length, max_predictions
            )
        size = words.size[selected]
        indices = concat_ranges(words.first[selected], size)
        unit_indices = indices if settings.masking == "whole_word" else np.repeat(span_starts, size)
        return indices, unit_indices, np.repeat(words.sequence[selected], size)


def _select_tokens(
    keys: rng.Bits, positions: IntArray, unmaskable: BoolArray, lengths: IntArray, num_predictions: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the sequence of each selected token and its position there, in ascending order, int64 [M] each.

    Of each sequence, the `num_predictions` maskable tokens with the lowest random bits are selected. One sort of
    one array of keys selects them for all sequences.
    """
    sequence = np.arange(len(lengths), dtype=np.uint64)
    # In place, to save passes over memory.
    key = rng.extend_bits(np.repeat(keys, lengths), positions)
    key >>= np.uint64(64) - _RANDOM_BITS
    key <<= _POSITION_BITS
    key |= positions.view(np.uint64)
    key |= unmaskable.astype(np.uint64) << _UNMASKABLE_BIT
    key |= np.repeat(sequence << _SEQUENCE_SHIFT, lengths)
    key.sort()
    key = key[concat_ranges(np.cumsum(lengths) - lengths, num_predictions)]
    # Sort the selected tokens by sequence and position.
    combined = ((key >> _SEQUENCE_SHIFT) << _POSITION_BITS) | (key & _POSITION_MASK)
    combined.sort()
    return (combined >> _POSITION_BITS).view(np.int64), (combined & _POSITION_MASK).view(np.int64)
