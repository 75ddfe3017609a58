"""Continue texts with a left-to-right language model: greedy or by sampling, token by token.

Sampling divides the logits by a temperature and keeps the most probable tokens: `top_k` of them, and then as many
as have the probability `top_p` together (nucleus sampling, Holtzman et al. 2020). The random number of a step is a
function of the seed, the step, and how many equal prompts came before, so that a continuation does not depend on
the other prompts. Special tokens are never generated, except for the one that ends a text.

Shapes: B prompts, H hidden size, V vocabulary size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import rng
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.predictor import not_finite_error
from bertsmith.inference.text_input import log_empty
from bertsmith.io.values import is_blank
from bertsmith.models.encoder import Encoder
from bertsmith.models.incremental import step_encoder
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.notebook import Result
from bertsmith.tokenizer.tokenizer import Tokenizer

_BATCH_SIZE = 32  # prompts that are continued at the same time
_INCOMPLETE = "\ufffd"  # the text of bytes that are no whole character
FinishReason = Literal["end", "max_new_tokens", "max_length"]


_RANGES: tuple[tuple[str, type, Callable[[Any], bool], str], ...] = (
    ("max_new_tokens", Integral, lambda value: value >= 1, "use an integer of 1 or more"),
    ("temperature", Real, lambda value: 0 <= value < math.inf, "use 0 (greedy) or more, such as 0.8"),
    ("top_k", Integral, lambda value: value >= 1, "use an integer of 1 or more, or omit it"),
    ("top_p", Real, lambda value: 0 < value <= 1, "use a probability above 0, up to 1"),
    ("seed", Integral, lambda value: value >= 0, "use an integer of 0 or more"),
)


@dataclass(frozen=True)
class Sampling:
    """Settings of generation.

    Attributes:
        max_new_tokens: The maximum number of tokens to generate.
        temperature: The divisor of the logits; 0: always the most probable token (greedy).
        top_k: The number of most probable tokens to choose from; None: all.
        top_p: Choose from the fewest tokens that have this probability together.
        seed: The seed of the random numbers.

    Raises:
        InputError: A value is out of range, or no number.
    """

    max_new_tokens: int = 50
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, number_type, is_in_range, hint in _RANGES:
            value = getattr(self, name)
            if name == "top_k" and value is None:
                continue
            if not isinstance(value, number_type) or not is_in_range(value):
                message = f"{value!r:.40} is not a number in the valid range"
                raise InputError("sampling_out_of_range", message, argument=name, hint=hint)

    def choose(self, logits: Tensor, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the next token of each of B sequences, [B].

        Args:
            logits: The logits of the next tokens, [B, V].
            uniforms: A number in [0, 1) for each sequence, [B].
        """
        if self.temperature == 0:
            greedy: NDArray[np.int64] = logits.argmax(1).cpu().numpy()
            return greedy
        scores = logits.cpu().double() / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[1]:
            least = scores.topk(self.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        probabilities = scores.softmax(1)
        if self.top_p < 1:
            ordered, indices = probabilities.sort(dim=1, descending=True, stable=True)
            is_outside = ordered.cumsum(1) - ordered >= self.top_p
            probabilities = probabilities.scatter(1, indices, ordered.masked_fill(is_outside, 0.0))
        cumulative = probabilities.cumsum(1)
        targets = torch.from_numpy(uniforms)[:, None] * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the target has a probability above 0.
        tokens: NDArray[np.int64] = torch.searchsorted(cumulative, targets, right=True)[:, 0].numpy()
        return tokens


@dataclass(frozen=True)
class GeneratedText(Result):
    """The continuation of a prompt.

    Attributes:
        prompt: The prompt.
        text: The text that follows it.
        tokens: The number of generated tokens, without the one that ends the text.
        finish_reason: "end" if the model ended the text; otherwise the limit that was reached: `max_new_tokens`,
            or the model's maximum length (`max_length`).
    """

    prompt: str
    text: str
    tokens: int
    finish_reason: FinishReason


@dataclass
class _Sequence:
    """A prompt and its continuation so far.

    Attributes:
        index: The index of the prompt.
        occurrence: The number of equal prompts before it.
        prompt_ids: The ids of the prompt, with the special tokens before it.
        ids: The generated ids.
        finish_reason: None while it goes on.
    """

    index: int
    occurrence: int
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class TextGenerator:
    """Continues texts by a left-to-right language model.

    Attributes:
        encoder: The encoder, in evaluation mode.
        head: The language-modeling head.
        tokenizer: Its tokenizer.
        context: The device and the precision.
        sampling: The choice of tokens.
        path: The path of the model, for errors.
        use_cache: Keep the keys and values of earlier tokens. False: compute all tokens in each step.
    """

    encoder: Encoder
    head: MaskedLMHead
    tokenizer: Tokenizer
    context: ComputeContext
    sampling: Sampling
    path: Path
    use_cache: bool = True

    def __call__(self, prompts: Sequence[str], locations: Sequence[str] | None = None) -> list[GeneratedText]:
        """Return the continuation of each prompt.

        Args:
            prompts: The prompts.
            locations: Their locations, for errors; None: "prompt 1", …

        Raises:
            InputError: A prompt is too long, or the model's outputs are not finite.
        """
        sequences = self._sequences(prompts, locations)
        by_length = sorted(sequences, key=lambda sequence: len(sequence.prompt_ids))
        for start in range(0, len(by_length), _BATCH_SIZE):
            for _ in self._steps(by_length[start : start + _BATCH_SIZE], prompts):
                pass
        return [self._result(prompts[sequence.index], sequence) for sequence in sequences]

    def stream(self, prompt: str) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces of whole characters, as soon as they are generated."""
        (sequence,) = self._sequences([prompt], None)
        num_yielded = 0
        for _ in self._steps([sequence], [prompt]):
            text = self._text(sequence)
            if sequence.finish_reason is None:
                text = self._stable_text(text)
            if len(text) > num_yielded:
                yield text[num_yielded:]
                num_yielded = len(text)

    def _sequences(self, prompts: Sequence[str], locations: Sequence[str] | None) -> list[_Sequence]:
        counts: Counter[str] = Counter()
        sequences, empty = [], []
        for index, prompt in enumerate(prompts):
            location = locations[index] if locations else f"prompt {index + 1}"
            if is_blank(prompt):
                empty.append(location)
            ids = self.tokenizer.encode_prompt(prompt)
            limit = self.encoder.config.max_length
            if not 0 < len(ids) < limit:
                if not ids:
                    message, hint = (
                        "the prompt is empty",
                        "give at least a word: the vocabulary has no start token",
                    )
                    raise InputError("prompt_empty", message, location=location, hint=hint)
                message = (
                    f"the prompt has {pluralize(len(ids), 'token')}, and the model reads at most {limit:,} with "
                    "those that it generates"
                )
                hint = "shorten it; the end of a text matters most for its continuation"
                raise InputError("prompt_too_long", message, location=location, hint=hint)
            sequences.append(_Sequence(index, counts[prompt], ids))
            counts[prompt] += 1
        log_empty(empty, "continued from the start of a text")
        return sequences

    def _steps(self, sequences: Sequence[_Sequence], prompts: Sequence[str]) -> Iterator[None]:
        """Add a token to each sequence that goes on, in each step."""
        end_id, limit = self.tokenizer.end_token_id, self.encoder.config.max_length
        hidden_ids = sorted(self.tokenizer.all_special_ids - {end_id})
        hidden_ids += range(self.tokenizer.vocab_size, self.encoder.config.vocab_size)
        encoder = step_encoder(self.context.autocast_encoder(self.encoder), use_cache=self.use_cache)
        new_tokens = [sequence.prompt_ids for sequence in sequences]
        for step in range(self.sampling.max_new_tokens):
            with torch.inference_mode():
                logits = self.head(encoder.read(new_tokens), self.encoder.embeddings.token.weight).float()
                if not logits.isfinite().all():
                    first = int((~logits.isfinite().all(1)).nonzero()[0, 0])
                    raise not_finite_error(self.path, prompts[sequences[first].index])
                logits[:, hidden_ids] = -torch.inf
                occurrences = np.array([sequence.occurrence for sequence in sequences])
                uniforms = rng.uniform(self.sampling.seed, "generate", step, occurrences)
                tokens = self.sampling.choose(logits, uniforms).tolist()
            for sequence, token in zip(sequences, tokens, strict=True):
                if token == end_id:
                    sequence.finish_reason = "end"
                    continue
                sequence.ids.append(token)
                if step + 1 == self.sampling.max_new_tokens:
                    sequence.finish_reason = "max_new_tokens"
                elif len(sequence.prompt_ids) + len(sequence.ids) >= limit:
                    sequence.finish_reason = "max_length"
            yield
            unfinished = [i for i, sequence in enumerate(sequences) if sequence.finish_reason is None]
            if not unfinished:
                return
            if len(unfinished) < len(sequences):
                encoder.keep(np.array(unfinished))
                sequences = [sequences[i] for i in unfinished]
            new_tokens = [sequence.ids[-1:] for sequence in sequences]

    def _result(self, prompt: str, sequence: _Sequence) -> GeneratedText:
        reason = sequence.finish_reason
        assert reason is not None
        return GeneratedText(prompt, self._text(sequence), len(sequence.ids), reason)

    def _text(self, sequence: _Sequence) -> str:
        """Return the text that the generated tokens add to the prompt, with a space before a new word."""
        prompt = self.tokenizer.decode(sequence.prompt_ids)
        text = self.tokenizer.decode([*sequence.prompt_ids, *sequence.ids])
        return text[len(prompt) :] if text.startswith(prompt) else self.tokenizer.decode(sequence.ids)

    def _stable_text(self, text: str) -> str:
        """Return the part of a text that does not change when tokens follow."""
        if self.tokenizer.kind == "wordpiece":  # whose decoder joins punctuation and contractions
            return text[: max(0, text.rfind(" "))]
        return text.rstrip(_INCOMPLETE)


def check_left_to_right(*, causal: bool, backwards: bool, location: object, usage: str) -> None:
    """Raise an InputError for a model that cannot continue a text, with a command that it serves."""
    if not causal:
        message = "this model does not read from left to right only, so it cannot continue a text"
        other = option("objective.name", "causal")
        hint = f"use {usage} with it, or a model that was pre-trained with {other}"
        raise InputError("model_not_causal", message, location=location, hint=hint)
    if backwards:
        message = "this model reads from right to left, so it cannot continue a text"
        other = option("model.backwards")
        hint = f"use {usage} with it, or a model that was pre-trained without {other}"
        raise InputError("model_reads_backwards", message, location=location, hint=hint)
