"""Unigram pieces from counted words: the library's trainer, and what makes its result the same everywhere.

The trainer (Kudo 2018: expectation-maximisation, then pruning by what each piece is worth) walks hash maps whose
order differs from process to process. Two things come out of that order. Sums of floats differ in their last
bits: scores are rounded to 6 digits. And characters that were pruned get back in at the bottom, each with a score
0.0001 above the one before, in the map's order: these scores are dealt out anew, the most frequent character the
best. Pieces are then numbered by score, ties by spelling. What is pruned did not differ in any of the runs that
were compared (seven vocabularies in three processes of one to three threads each); the tests compare again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

_DIGITS = 6
_STEP = 1e-4  # between characters that get back in, in the library
_UNKNOWN = "<unk>"


def pieces_of(
    words: Mapping[str, int], size: int, lines_of: Callable[[Mapping[str, int]], Iterable[str]]
) -> list[tuple[str, float]]:
    """At most `size` pieces with their log probabilities, the best first. `lines_of` writes counted words as
    lines with blanks between words."""
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 2,  # it gives one less than asked, its unknown among them
        special_tokens=[_UNKNOWN],
        unk_token=_UNKNOWN,
        show_progress=False,
    )
    library.train_from_iterator(lines_of(words), trainer)
    scores = {
        piece: float(score)
        for piece, score in json.loads(library.to_str())["model"]["vocab"]
        if piece != _UNKNOWN
    }
    scores.update(_dealt_out(scores, words))
    rounded = [(piece, round(score, _DIGITS)) for piece, score in scores.items()]
    ordered = sorted(rounded, key=lambda item: (-item[1], item[0]))
    over = [item for item in ordered if len(item[0]) > 1][::-1][: max(0, len(ordered) - size)]
    return [item for item in ordered if item not in over]


def _dealt_out(scores: Mapping[str, float], words: Mapping[str, int]) -> dict[str, float]:
    """The scores of the characters that got back in, the most frequent the best."""
    lowest = min(scores.values())
    by_step: dict[int, list[str]] = {}
    for piece, score in scores.items():
        step = round((score - lowest) / _STEP)
        if len(piece) == 1 and abs(score - lowest - _STEP * step) < _STEP / 100:
            by_step.setdefault(step, []).append(piece)
    # From the bottom, where others may stand, too, up to the first step that nothing is on.
    top = next(step for step in range(len(scores) + 1) if step not in by_step)
    back = [piece for step in range(top) for piece in by_step[step]]
    seen: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            seen[character] += count
    ranked = sorted(back, key=lambda piece: (seen[piece], piece))
    return dict(zip(ranked, sorted(scores[piece] for piece in back), strict=True))
