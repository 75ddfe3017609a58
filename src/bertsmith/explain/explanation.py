"""Explain an output of a model: attributions of tokens and words, their faithfulness, and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.explain.attention import AttentionMaps, attention_maps, cross_attention_maps
from bertsmith.explain.attribution import BaselineName, ExplainedOutput, baseline_ids, check_steps, is_special
from bertsmith.explain.faithfulness import Faithfulness, measure_faithfulness
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import get_family
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.notebook import Result
from bertsmith.tasks.base import WritingModel
from bertsmith.tasks.batching import Item, TaskBatch, TokenSequence, pack
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.targets import Target, class_target
from bertsmith.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class WordAttribution:
    """A word and how much it adds to an output.

    Attributes:
        word: The word as it is in the text, or as the tokenizer has it if its place is unknown.
        source: The name of the input with the word, of a list with the index, such as choices[1]; None if its
            place is unknown.
        start: The index of its first character in the input.
        end: The index behind its last character.
        attribution: The sum of the integrated gradients of its tokens.
        occlusion: What the output loses if the word is replaced by the baseline.
        tokens: The indices of its tokens.
    """

    word: str
    source: str | None
    start: int | None
    end: int | None
    attribution: float
    occlusion: float
    tokens: list[int]


@dataclass(frozen=True)
class Explanation(Result):
    """An explanation of an output.

    Attributes:
        target: The name of the output, such as a label.
        output: The output, a logit unless it is a cosine or a number.
        baseline: The name of the baseline.
        baseline_output: The output for the baseline.
        gap: By how much the attributions miss the difference of both outputs, relative to it (at least 0.001).
        steps: The steps of the integral.
        tokens: The tokens.
        attributions: The integrated gradients of the tokens, special tokens included.
        words: The words.
        faithfulness: That of the attributions of words; None for a single word.
        agreement: Spearman's correlation of attributions and occlusion over the words; None if it is undefined.
        model: The path or name of the model.
        texts: The inputs that are texts, by name; those of a list also with their indices.
        attention: The attention weights of each sequence that the model reads; empty unless requested, and for a
            model without attention.
    """

    target: str
    output: float
    baseline: str
    baseline_output: float
    gap: float
    steps: int
    tokens: list[str]
    attributions: list[float]
    words: list[WordAttribution]
    faithfulness: Faithfulness | None = None
    agreement: float | None = None
    model: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    attention: list[AttentionMaps] = field(default_factory=list, repr=False)

    display_fields: ClassVar[tuple[str, ...]] = ("target", "output", "baseline_output", "gap", "words")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields without `attention`, with nested dataclasses as dicts."""
        values = asdict(replace(self, attention=[]))
        del values["attention"]
        return values

    def save(self, file: str | Path) -> Path:
        """Write a page (.html), with attention if it was requested, or a plot (.png); return its path.

        Raises:
            InputError: The name of the file has another ending, or a page would have more than 64 MB.
        """
        from bertsmith.explain.page import save_explanations

        return save_explanations(file, [self])


def explain_task(
    encoder: Encoder,
    task: FittedTask,
    tokenizer: Tokenizer,
    context: ComputeContext,
    example: Any,
    texts: Mapping[str, str],
    *,
    target: str | None = None,
    probability: bool = False,
    baseline: BaselineName = "mask",
    steps: int | None = None,
    attention: bool = False,
) -> Explanation:
    """Explain the answer to an example of a task, or another output for it.

    Args:
        encoder: The encoder in evaluation mode.
        task: The task.
        tokenizer: The tokenizer.
        context: The device.
        example: The example.
        texts: The inputs that are texts, by name, in the order in which the model reads them.
        target: The output, as `Decoder.target` names it; None: that of the answer.
        probability: Explain the probability of the target instead of its logit.
        baseline: The baseline.
        steps: As in `explain_output`.
        attention: Compute the attention weights, too, if the model has any.

    Raises:
        InputError: The example is empty or too long, or there is no such output or baseline.
    """
    items = task.encode([example], tokenizer) if not example.is_empty else []
    if not items:
        raise InputError("no_tokens", "the text has no tokens", hint="use a text with words")
    stats = task.text_stats(tokenizer, items)
    if len(items) > 1 or stats.num_truncated:
        message = (
            f"the text has {stats.longest + stats.special:,} tokens, and the model reads {stats.limit:,}"
        )
        raise InputError("text_too_long", message, hint="use a shorter text")

    def collate(copies: Sequence[Item]) -> TaskBatch:
        return context.to_device(model.collate(copies))

    def forward(copies: Sequence[Item]) -> Sequence[Tensor]:
        function = model.target_logits if isinstance(model, WritingModel) else model.outputs
        return function(encoder, collate(copies))

    model, (item, *_) = task.model, items
    with torch.inference_mode():
        if isinstance(model, WritingModel):
            item = model.written_item(item, model.outputs(encoder, collate(items))[0].cpu())
        output = forward([item])[0].cpu()
    name, score = task.decoder.target(output, item, target)
    if probability:
        if task.decoder.probabilities(output) is None:
            message = f"the task '{task.name}' has no probability of a single output"
            hint = f"omit {option('probability', True)}"
            raise InputError("no_probability", message, argument="probability", hint=hint)
        name, score = _probability(name, score, task.decoder.probabilities)
    ids = baseline_ids(item, tokenizer, baseline)
    encoders = [encoder, *(module for module in model.modules() if isinstance(module, Encoder))]
    embeddings = [module.embeddings.token for module in encoders]
    explained = ExplainedOutput(embeddings, item, forward, score, ids, baseline)
    maps = _attention_maps(encoder, tokenizer, context, items) if attention else []
    if attention and isinstance(model, WritingModel):
        with torch.inference_mode():
            tokens, weights = model.cross_attention(encoder, collate([item]))
        if weights:
            maps.append(cross_attention_maps(tokenizer, explained.ids, tokens.cpu().numpy(), weights))
    return explain_output(explained, name, tokenizer, texts, steps=steps, attention=maps)


def explain_mask(
    encoder: Encoder,
    head: MaskedLMHead,
    tokenizer: Tokenizer,
    context: ComputeContext,
    text: str,
    *,
    target: str | None = None,
    probability: bool = False,
    baseline: BaselineName = "mask",
    steps: int | None = None,
    attention: bool = False,
) -> Explanation:
    """Explain the prediction of the first mask of a text: the logit of the most probable token, or of another.

    Args:
        encoder: The encoder in evaluation mode.
        head: The head over the vocabulary.
        tokenizer: The tokenizer.
        context: The device.
        text: The text with a mask.
        target: A token; None: the most probable one.
        probability: Explain the token's probability instead of its logit.
        baseline: The baseline.
        steps: As in `explain_output`.
        attention: Compute the attention weights, too, if the model has any.

    Raises:
        InputError: The text has no mask, or is too long, or there is no such token or baseline.
    """
    max_length = min(encoder.config.max_length, tokenizer.max_length)
    encoding = tokenizer.encode(text, max_length=max_length, truncation="none", special_strings="mask")
    if tokenizer.mask_token_id not in encoding.ids:
        message = f"this model predicts masked tokens, and the text has no {tokenizer.mask_token}"
        raise InputError("mask_missing", message, hint=f"put {tokenizer.mask_token} in place of a word")
    item, row = Item(0, (TokenSequence.from_encoding(encoding),)), encoding.ids.index(tokenizer.mask_token_id)

    def forward(copies: Sequence[Item]) -> Sequence[Tensor]:
        packed = context.to_device(pack(copies))
        hidden = encoder(packed, rows=packed.cu_seqlens[:-1] + row)
        return torch.split(head(hidden, encoder.embeddings.token.weight).float(), 1)

    with torch.inference_mode():
        name, score = class_target(forward([item])[0].cpu(), tokenizer.tokens, target)
    if probability:
        name, score = _probability(name, score, lambda output: output.double().softmax(-1))
    maps = _attention_maps(encoder, tokenizer, context, [item]) if attention else []
    explained = ExplainedOutput(
        [encoder.embeddings.token], item, forward, score, baseline_ids(item, tokenizer, baseline), baseline
    )
    return explain_output(explained, name, tokenizer, {"text": text}, steps=steps, attention=maps)


def _probability(
    name: str, score: Callable[[Tensor], Tensor], probabilities: Callable[[Tensor], Any]
) -> Target:
    """Return the probability of a target."""
    return Target(f"probability of {name}", lambda output: score(probabilities(output)))


def explain_output(
    explained: ExplainedOutput,
    name: str,
    tokenizer: Tokenizer,
    texts: Mapping[str, str],
    *,
    steps: int | None = None,
    attention: Sequence[AttentionMaps] = (),
    seed: int = 0,
) -> Explanation:
    """Explain an output.

    Args:
        explained: The output.
        name: Its name.
        tokenizer: The tokenizer.
        texts: The inputs of the example by name.
        steps: The steps of the integral; None: as many as the gap needs.
        attention: The attention weights of the sequences.
        seed: The seed of random orders of words.
    """
    check_steps(steps)
    words = _words(explained.ids, tokenizer)
    if not words:
        raise InputError(
            "no_tokens", "the text has no words but special tokens", hint="use a text with words"
        )
    result = explained.integrated_gradients(steps)
    membership = np.zeros((len(words), len(explained.ids)), dtype=bool)
    for i, indices in enumerate(words):
        membership[i, indices] = True

    def scores(masked: NDArray[np.bool_]) -> NDArray[np.float64]:
        return explained.scores(masked.astype(np.int64) @ membership > 0)

    attributions = membership @ result.attributions
    occlusion = result.output - scores(np.eye(len(words), dtype=bool))
    places = _places(explained.ids, words, tokenizer, texts)
    return Explanation(
        name,
        result.output,
        explained.baseline,
        result.baseline_output,
        result.gap,
        result.steps,
        [tokenizer.tokens[i] for i in explained.ids],
        result.attributions.tolist(),
        [
            WordAttribution(*place, float(a), float(o), indices)
            for place, a, o, indices in zip(places, attributions, occlusion, words, strict=True)
        ],
        measure_faithfulness(attributions.tolist(), scores, seed) if len(words) > 1 else None,
        _rank_correlation(attributions, occlusion),
        texts=dict(texts),
        attention=list(attention),
    )


def _attention_maps(
    encoder: Encoder, tokenizer: Tokenizer, context: ComputeContext, items: Sequence[Item]
) -> list[AttentionMaps]:
    """Return the attention weights of each sequence; none if the family has no attention."""
    if not get_family(encoder.config.model_type).is_transformer:
        return []
    return attention_maps(encoder, tokenizer, context.to_device(pack(items)))


def _words(ids: NDArray[np.int64], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the indices of the tokens of each word, special tokens excluded."""
    words: list[list[int]] = []
    special, starts = is_special(ids, tokenizer), tokenizer.word_starts(ids)
    for i in np.flatnonzero(~special).tolist():
        if starts[i] or not words or words[-1][-1] != i - 1:
            words.append([])
        words[-1].append(i)
    return words


def _places(
    ids: NDArray[np.int64], words: Sequence[list[int]], tokenizer: Tokenizer, texts: Mapping[str, str]
) -> list[tuple[str, str | None, int | None, int | None]]:
    """Return the word, the name of its text, and its characters there, for each word.

    Words that were added to a text, such as markers, have no place.
    """
    offsets = _token_offsets(ids, tokenizer, texts)
    places: list[tuple[str, str | None, int | None, int | None]] = []
    for indices in words:
        if indices[0] in offsets and indices[-1] in offsets:
            name, start_char, _ = offsets[indices[0]]
            end_char = offsets[indices[-1]][2]
            places.append((texts[name][start_char:end_char], name, start_char, end_char))
        else:
            places.append((tokenizer.decode(ids[indices].tolist()).strip(), None, None, None))
    return places


def _token_offsets(
    ids: NDArray[np.int64], tokenizer: Tokenizer, texts: Mapping[str, str]
) -> dict[int, tuple[str, int, int]]:
    """Return the name and the characters of the text of each token that is in a text.

    A text follows a special token or another text; the longest is taken, of equal ones the one that occurs less.
    In a text that was changed, such as by markers, sequences of tokens have places.
    """
    tokens_of: dict[str, tuple[NDArray[np.int64], list[tuple[int, int]]]] = {}
    for name, text in texts.items():
        encoding = tokenizer.encode(text, special_strings="mask")
        rows = [i for i, source in enumerate(encoding.sequence_ids) if source is not None]
        part = np.array([encoding.ids[row] for row in rows], dtype=np.int64)
        tokens_of[name] = part, [encoding.offsets[row] for row in rows]
    counts = dict.fromkeys((name for name, (part, _) in tokens_of.items() if len(part)), 0)
    offsets: dict[int, tuple[str, int, int]] = {}
    special, i, may_start = is_special(ids, tokenizer), 0, True
    while i < len(ids):
        names = sorted(counts, key=lambda name: (-len(tokens_of[name][0]), counts[name])) if may_start else []
        for name in names:
            part, part_offsets = tokens_of[name]
            if np.array_equal(ids[i : i + len(part)], part):
                offsets |= {i + j: (name, *offset) for j, offset in enumerate(part_offsets)}
                counts[name] += 1
                i += len(part)
                break
        else:
            may_start = bool(special[i])
            i += 1
    for name in (name for name, count in counts.items() if not count):
        part, part_offsets = tokens_of[name]
        matcher = SequenceMatcher(None, ids.tolist(), part.tolist(), autojunk=False)
        for row, start, size in matcher.get_matching_blocks():
            places = {row + j: (name, *part_offsets[start + j]) for j in range(size)}
            offsets = places | offsets
    return offsets


def _rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Return Spearman's correlation; None if one side is constant."""
    from scipy.stats import spearmanr

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    value = float(spearmanr(a, b).statistic)
    return value if math.isfinite(value) else None
