"""Encoding, the decoder with its loss, search, and decoding of target texts.

The decoder writes [SEP] after the target, and [CLS] stands before its first token (the target is shifted right,
Vaswani et al. 2017, section 3.1). So encoder and decoder share one vocabulary, and the token embeddings too.

Search needs the decoder's weights, and so belongs to the outputs of the model: the output of an item is a tensor
[1 + t, 2]. Its first row is the summed loss of the reference target and its number of tokens (0 if there is no
reference); each further row is a token of the best text and its log-probability. An item has the settings of the
search, since a call of `predict` may change them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.loss import Loss
from bertsmith.models.beam_search import Hypothesis, Step, search
from bertsmith.models.config import ModelConfig
from bertsmith.models.decoder import (
    DecoderState,
    EncodedSource,
    RecurrentDecoder,
    TargetDecoder,
    TransformerDecoder,
)
from bertsmith.models.encoder import Encoder
from bertsmith.models.padded import PaddedBatch, PaddedSource
from bertsmith.packed import Packed
from bertsmith.tasks.base import Decoder, Metadata, TargetLogits, TaskEncoder, WritingModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch, TokenSequence, pack
from bertsmith.tasks.results import Prediction
from bertsmith.tasks.settings import TranslateSettings
from bertsmith.tasks.targets import Target, find_label
from bertsmith.tasks.translation.data import TranslationExample
from bertsmith.tasks.windows import Coverage
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

logger = logging.getLogger(__name__)

_MAX_ADDED_TOKENS = 50  # that a text may have more than its source (Vaswani et al. 2017, section 6.1)


@dataclass(frozen=True)
class TranslationItem(Item):
    """A source text; `target` are the tokens of the target text from [CLS] to [SEP].

    Attributes:
        tokenizer: The tokenizer that turns tokens into text.
        num_beams: The number of beams of the search.
        max_tokens: The maximum number of tokens to write.
        target_tokens: The number of tokens of the whole target text, special tokens excluded.
        target_tokens_read: The number of these in `target`.
    """

    tokenizer: Tokenizer | None = None
    num_beams: int = 1
    max_tokens: int = 1
    target_tokens: int = 0
    target_tokens_read: int = 0


class TranslationEncoder(TaskEncoder):
    """Encode [CLS] text [SEP] for the source and for the target."""

    def encode(self, examples: Sequence[TranslationExample], tokenizer: Tokenizer) -> list[Item]:
        """Return an item for each example."""
        if not tokenizer.num_separators:
            message = (
                "the tokenizer puts no special tokens around a text, and a decoder starts and ends with them"
            )
            hint = "use a model whose tokenizer has [CLS] and [SEP], such as one by train_tokenizer"
            raise InputError("special_tokens_missing", message, hint=hint)
        settings: TranslateSettings = self.settings
        limit = min(self.config.max_length, settings.max_target_length or self.config.max_length)
        target_texts = [example.target or "" for example in examples]
        if tokenizer.lowercase and any(target != target.lower() for target in target_texts):
            logger.warning("the tokenizer lower-cases text, so target texts are written in lower case")
        sources = _encode(tokenizer, [example.text for example in examples], self.max_length)
        targets = _encode(tokenizer, target_texts, limit)
        items: list[Item] = []
        for index, (example, source, target) in enumerate(zip(examples, sources, targets, strict=True)):
            sequence, target_sequence = map(TokenSequence.from_encoding, (source, target))
            max_tokens = limit - 1
            if settings.max_target_length is None:
                max_tokens = min(max_tokens, len(sequence.ids) + _MAX_ADDED_TOKENS)
            items.append(
                TranslationItem(
                    index,
                    (sequence,),
                    None if example.target is None else target_sequence.ids.astype(np.int64),
                    tokenizer=tokenizer,
                    num_beams=settings.num_beams,
                    max_tokens=max_tokens,
                    target_tokens=target_sequence.tokens,
                    target_tokens_read=target_sequence.tokens_read,
                )
            )
        return items

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Return how much of a source and of its target is read."""
        (item,) = items
        assert isinstance(item, TranslationItem)
        sequence = item.sequences[0]
        return Coverage(sequence.tokens + item.target_tokens, sequence.tokens_read + item.target_tokens_read)


def _encode(tokenizer: Tokenizer, texts: list[str], max_length: int) -> list[Encoding]:
    return tokenizer.encode_batch(texts, max_length=max_length, with_offsets=False)


class TranslationModel(WritingModel):
    """A decoder on the encoder's states. It shares the encoder's embeddings, also as output weights."""

    inherited_heads = ()
    outputs_per_token = True
    supports_distillation = False

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: TranslateSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        if config.model_type == "nnlm" or config.embedding_type == "char_cnn":
            message = "a decoder writes with the vectors of single tokens, and this model has none"
            hint = "use a model of another family, or with model.embedding_type=token"
            raise InputError("no_token_vectors", message, argument="model", hint=hint)
        if settings.decoder_type == "transformer":
            self.decoder: TargetDecoder = TransformerDecoder(config, generator)
        else:
            self.decoder = RecurrentDecoder(config, generator, settings.attention_score)

    @property
    def heads(self) -> dict[str, nn.Module]:
        """Return the decoder by the name of its kind."""
        return {decoder_part(self.settings): self.decoder}

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the targets and the settings of the search.

        `target_inputs` are the tokens of all targets from [CLS] on, `target_labels` those up to [SEP], both [M],
        and `target_lengths` [B] their numbers. `search` [B, 4] has the first and the last token of a text, the
        number of beams, and of tokens to write.
        """
        rows = []
        for item in items:
            assert isinstance(item, TranslationItem)
            ids = item.sequences[0].ids
            rows.append([int(ids[0]), int(ids[-1]), item.num_beams, item.max_tokens])
        tensors = {"search": torch.tensor(rows)}
        if any(item.target is None for item in items):
            return tensors, {}
        targets = [item.target for item in items]
        tensors["target_inputs"] = torch.from_numpy(np.concatenate([target[:-1] for target in targets]))
        tensors["target_labels"] = torch.from_numpy(np.concatenate([target[1:] for target in targets]))
        tensors["target_lengths"] = torch.tensor([len(target) - 1 for target in targets])
        return tensors, {"task": len(tensors["target_labels"])}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the cross-entropy of the targets' tokens, with label smoothing, summed."""
        with encoder.embeddings.token.tied_decoder_weight(True) as token_embeddings:
            source = self._source(encoder, batch)
            losses, num_correct, _ = self._token_losses(encoder, batch, source, token_embeddings)
        return Loss({"task": losses.sum()}, batch.counts, {"task": num_correct})

    def _source(self, encoder: Encoder, batch: TaskBatch) -> EncodedSource:
        return EncodedSource(self.features(encoder, batch.packed), batch.packed)

    def _token_losses(
        self, encoder: Encoder, batch: TaskBatch, source: EncodedSource, token_embeddings: Tensor
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Return the loss of each token to predict, [M], the number of correct ones, and their number by item."""
        targets, labels = _targets(batch), batch.tensors["target_labels"]
        logits = self.decoder.logits(self.decoder(encoder.embeddings, targets, source), token_embeddings)
        smoothing = self.settings.label_smoothing
        losses = F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)
        num_correct = (logits.detach().argmax(-1) == labels).sum()
        return losses, num_correct, targets.lengths.tolist()

    def written_item(self, item: Item, output: Tensor) -> Item:
        """Return the item with the written text as its target."""
        return replace(item, target=np.array([item.sequences[0].ids[0], *hypothesis(output).tokens]))

    def target_logits(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the logits of the tokens of each target, [t, V]."""
        source, targets = self._source(encoder, batch), _targets(batch)
        outputs = self.decoder(encoder.embeddings, targets, source)
        logits = self.decoder.logits(outputs, encoder.embeddings.token.weight)
        return torch.split(logits.float(), targets.lengths.tolist())

    def cross_attention(self, encoder: Encoder, batch: TaskBatch) -> tuple[Tensor, list[Tensor]]:
        """Return the tokens that the decoder reads, [CLS] and those of the text, and their attention weights."""
        source, targets = self._source(encoder, batch), _targets(batch)
        return targets.tokens, self.decoder.attention_weights(encoder.embeddings, targets, source)

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return [1 + t, 2] for each item: see the module docstring."""
        source = self._source(encoder, batch)
        token_embeddings = encoder.embeddings.token.weight
        references = [(0.0, 0.0)] * len(batch.sizes)
        if "target_labels" in batch.tensors:
            losses, _, lengths = self._token_losses(encoder, batch, source, token_embeddings)
            parts = torch.split(losses, lengths)
            references = [(float(part.sum()), float(len(part))) for part in parts]

        def step(tokens: Tensor, state: DecoderState) -> Tensor:
            outputs = self.decoder.step(encoder.embeddings, tokens, state)
            logits: Tensor = self.decoder.logits(outputs, token_embeddings)
            return logits.float().log_softmax(-1)

        texts = _search(step, lambda: self.decoder.start(source), batch.tensors["search"])
        return [_output(text, reference) for text, reference in zip(texts, references, strict=True)]

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return the logits of the next token after each token of padded targets, [B · t, V]."""
        packed: Any = batch.packed
        ids = batch.tensors["decoder_input_ids"]
        targets = PaddedBatch.create(ids, torch.ones_like(ids), None, self.config)
        source = PaddedSource(self.features(encoder, packed), packed, targets)
        outputs = self.decoder(encoder.embeddings, targets, source)
        return self.decoder.logits(outputs, encoder.embeddings.token.weight)

    def write(self, items: Sequence[Item], logits: TargetLogits) -> list[Tensor]:
        """Return what `outputs` returns, without the loss of a reference."""

        def step(tokens: Tensor, state: DecoderState) -> Tensor:
            assert isinstance(state, _TextState)
            state.texts = torch.cat([state.texts, tokens[:, None]], 1)
            sources = [item for item, count in zip(items, state.counts, strict=True) for _ in range(count)]
            return logits(sources, state.texts.numpy())[:, -1].log_softmax(-1)

        tensors, _ = self.tensors(items)
        texts = _search(
            step, lambda: _TextState(EncodedSource(torch.empty(0), pack(items))), tensors["search"]
        )
        return [_output(text, (0.0, 0.0)) for text in texts]


class _TextState(DecoderState):
    """The tokens of each hypothesis, long [n, t], for a decoder that reads them again for each new one."""

    def __init__(self, source: EncodedSource) -> None:
        super().__init__(source)
        self.texts = torch.empty(len(self.counts), 0, dtype=torch.long)

    def _select(self, hypotheses: Tensor) -> None:
        self.texts = self.texts[hypotheses]


def _search(step: Step, start: Callable[[], DecoderState], settings: Tensor) -> list[Hypothesis]:
    """Return the best text of each item by the tensor `search` of a batch."""
    (first, *_), (last, *_), num_beams, max_tokens = settings.T.tolist()
    return search(step, start, first, last, max_tokens, num_beams)


def _output(text: Hypothesis, reference: tuple[float, float]) -> Tensor:
    """Return the output of an item: see the module docstring."""
    return torch.tensor([reference, *zip(text.tokens, text.log_probabilities, strict=True)])


def _targets(batch: TaskBatch) -> Packed:
    """Return the tokens of all targets that the decoder reads."""
    names = ("target_inputs", "target_lengths")
    inputs, lengths = (batch.tensors[name].cpu().numpy() for name in names)
    return Packed.from_arrays(inputs, np.zeros_like(inputs), lengths).to(batch.packed.tokens.device)


def decoder_part(settings: TranslateSettings) -> str:
    """Return the name of the decoder in a model folder."""
    if settings.decoder_type == "transformer":
        return "decoder"
    score = settings.attention_score
    return "recurrent_decoder" if score in ("dot", "none") else f"{score}_decoder"


@dataclass
class TranslationPrediction(Prediction):
    """The target text of a source text.

    Attributes:
        translation: The target text.
        score: The mean log-probability of its tokens, [SEP] included.
    """

    translation: str
    score: float


class TranslationDecoder(Decoder):
    """Turn the tokens of the best texts into strings."""

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TranslationExample]
    ) -> list[TranslationPrediction]:
        """Return the text of each example."""
        predictions = []
        for output, item in zip(outputs.per_item, items, strict=True):
            assert isinstance(item, TranslationItem)
            assert item.tokenizer is not None
            text = hypothesis(output)
            translation = item.tokenizer.decode(text.tokens)
            counts = item.sequences[0].token_counts
            predictions.append(TranslationPrediction(translation, text.score, **counts))
        return predictions

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the text with the best score of those of several models, with the mean of the losses."""
        best = max(outputs, key=lambda output: hypothesis(output).score)
        losses = torch.stack([output[0] for output in outputs]).mean(0)
        return torch.cat([losses[None], best[1:]])

    def target(self, output: Tensor, item: Item, name: str | None) -> Target:
        """Return the logit of a token of the written text, by its index from 0.

        Without a name it is the log-probability of all tokens.
        """
        assert isinstance(item, TranslationItem)
        assert item.tokenizer is not None
        tokens = item.target[1:].tolist()
        if name is None:
            rows = range(len(tokens))
            text = item.tokenizer.decode(tokens)
            return Target(text, lambda output: output.log_softmax(-1)[rows, tokens].sum())
        index = find_label([str(i) for i in range(len(tokens))], name)
        token = tokens[index]
        return Target(f"{index}={item.tokenizer.tokens[token]}", lambda output: output[index, token])


def hypothesis(output: Tensor) -> Hypothesis:
    """Return the text in an item's output."""
    tokens, log_probabilities = output[1:].T.tolist()
    return Hypothesis(tuple(map(int, tokens)), tuple(log_probabilities))


def reference_loss(output: Tensor) -> float | None:
    """Return the summed loss of the reference in an item's output; None if there is no reference."""
    loss, num_tokens = output[0].tolist()
    return loss if num_tokens else None
