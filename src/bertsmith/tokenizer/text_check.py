"""Judge texts: what a tokenizer loses of them, and what another program damaged. All commands report it alike."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bertsmith.formatting import pluralize
from bertsmith.io.encodings import find_mojibake
from bertsmith.tokenizer.script_coverage import (
    describe_script_mismatch,
    lost_joiners,
    recommended_options,
    script_ratios,
)

if TYPE_CHECKING:
    from bertsmith.tokenizer.tokenizer import Tokenizer

_SAMPLE_CHARACTERS = 1_000_000
_MAX_UNKNOWN_RATIO = 0.02  # of the tokens; with more, the tokenizer does not fit the texts
_LAST_LATIN = "\u02ff"  # of the characters of which no tokenizer loses any

logger = logging.getLogger(__name__)


class TextCheck:
    """Counts of texts as they stream by, from which the warnings follow.

    Attributes:
        characters: The counts of the first million characters.
        tokens: The number of tokens, special tokens excluded.
        unknown: The number of unknown tokens.
    """

    def __init__(self, tokens: int = 0, unknown: int = 0) -> None:
        self.characters: Counter[str] = Counter()
        self.tokens, self.unknown = tokens, unknown
        self._mojibake: Counter[tuple[str, str]] = Counter()
        self._remaining = _SAMPLE_CHARACTERS

    def add(self, texts: Iterable[str]) -> None:
        """Count the characters of texts."""
        for text in texts:
            if self._remaining <= 0:
                return
            sample = text[: self._remaining]
            self._remaining -= len(sample)
            self.characters.update(sample)
            if not sample.isascii():
                self._mojibake.update((match[0], meant) for match, meant in find_mojibake(sample))

    def add_ids(self, ids: ArrayLike, num_special: int, tokenizer: Tokenizer) -> None:
        """Count tokens by their ids, some of which are those of special tokens."""
        self.tokens += np.size(ids) - num_special
        if tokenizer.kind != "byte_level_bpe":
            self.unknown += int(np.count_nonzero(np.asarray(ids) == tokenizer.unk_token_id))

    def warnings(self, tokenizer: Tokenizer, *, chinese: bool | None = None) -> Iterator[str]:
        """Yield warnings of lost vowel signs, syllables, and joiners, of mojibake, and of unknown tokens.

        Args:
            tokenizer: The tokenizer of the texts.
            chinese: As in `describe_script_mismatch`.
        """
        is_latin = max(self.characters, default="") <= _LAST_LATIN
        scripts = {} if is_latin and not chinese else script_ratios(self.characters)
        mismatch = describe_script_mismatch(
            scripts, tokenizer.kind, lowercase=tokenizer.lowercase, chinese=chinese
        )
        if mismatch is not None:
            yield mismatch
        if scripts and lost_joiners(self.characters, tokenizer):
            yield (
                "this tokenizer removes zero-width joiners (U+200C, U+200D), and words that they divide become "
                "one: use a tokenizer trained with --kind byte-level-bpe, which keeps them"
            )
        if self._mojibake:
            (damaged, meant), _ = self._mojibake.most_common(1)[0]
            times = pluralize(self._mojibake.total(), "time")
            yield (
                f"the texts have UTF-8 that was read as another encoding, {times}, such as {damaged!r} for "
                f"{meant!r}: decode their source again as UTF-8"
            )
        ratio = self.unknown / max(1, self.tokens)
        if ratio > _MAX_UNKNOWN_RATIO:
            recommended = recommended_options(scripts)
            options = f" with {recommended[0]}" if recommended else ""
            yield (
                f"{ratio:.1%} of the tokens are unknown to this tokenizer, and the model cannot tell them apart: "
                f"use a tokenizer that was trained on such texts{options}"
            )

    def log(self, tokenizer: Tokenizer, *, chinese: bool | None = None) -> None:
        """Log the warnings."""
        for warning in self.warnings(tokenizer, chinese=chinese):
            logger.warning("%s", warning)
