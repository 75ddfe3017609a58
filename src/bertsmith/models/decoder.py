"""Decoders that write a target text token by token from an encoder's states.

`TransformerDecoder` has the encoder's layers with causal attention, and cross-attention between their sublayers
(Vaswani et al. 2017, section 3.1). `RecurrentDecoder` is an LSTM that starts from one vector of the source, and
attends to its tokens (Bahdanau et al. 2015; Luong et al. 2015) or reads that one vector in each step (Cho et al.
2014). Either reads the embeddings of its encoder, and its outputs are multiplied with the same token embeddings.

In training all tokens of a target are computed at once; in generation `step` computes the next token of each
hypothesis, from a state that the decoder's `start` returns. Hypotheses of one source are consecutive.

Shapes: M target tokens, S source tokens, B sources, n hypotheses, H hidden size, E embedding size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.models.attention import AttentionLayout, KeyValueCache
from bertsmith.models.config import ModelConfig
from bertsmith.models.cross_attention import AttentionScore, CrossAttention, PairLayout, ScoreName
from bertsmith.models.encoder import Embeddings
from bertsmith.models.family import get_family
from bertsmith.models.feature_extraction import sequence_states
from bertsmith.models.layers import Dropout, Linear, TransformerLayer
from bertsmith.models.matmul import MIN_ROWS, linear
from bertsmith.models.transformer_encoder import SinusoidalPositions
from bertsmith.models.weight_init import init_weights
from bertsmith.packed import Packed


@dataclass(frozen=True)
class EncodedSource:
    """The encoder's output for B source sequences.

    Attributes:
        states: The hidden states, [S, H].
        packed: The sequences.
    """

    states: Tensor
    packed: Packed

    def layout(self, target_lengths: NDArray[np.int64]) -> PairLayout:
        """Return the layout of attention from targets of these lengths, [B]."""
        device = self.states.device
        return PairLayout(target_lengths, self.packed.lengths, device, not torch.is_grad_enabled())

    def target_layout(self, targets: Packed) -> AttentionLayout:
        """Return the layout of the targets' attention to themselves."""
        return AttentionLayout(targets, "before", equal_lengths_only=not torch.is_grad_enabled())

    def repeat(self, x: Tensor, target_lengths: NDArray[np.int64]) -> Tensor:
        """Return the row of its source for each target token, [B, H] → [M, H]."""
        return x.repeat_interleave(torch.from_numpy(target_lengths).to(x.device), 0)


class DecoderState(ABC):
    """The memory of a decoder: its n hypotheses.

    Attributes:
        source: The sources.
        counts: The number of hypotheses of each source, int64 [B].
        length: The number of tokens of each hypothesis.
    """

    def __init__(self, source: EncodedSource) -> None:
        self.source, self.length = source, 0
        self.counts = np.ones(source.packed.num_sequences, np.int64)

    def select(self, hypotheses: Tensor, counts: NDArray[np.int64]) -> None:
        """Keep some hypotheses.

        Args:
            hypotheses: Their indices, long [m]; one may occur repeatedly.
            counts: The number of them for each source, int64 [B].
        """
        self.counts = counts
        self._select(hypotheses)

    @abstractmethod
    def _select(self, hypotheses: Tensor) -> None: ...

    def next_tokens(self, tokens: Tensor) -> Packed:
        """Return the next token of each hypothesis, long [n], as sequences of one token."""
        count, device = len(tokens), tokens.device
        positions = torch.full_like(tokens, self.length)
        self.length += 1
        cu_seqlens = torch.arange(count + 1, dtype=torch.int32, device=device)
        return Packed(tokens, torch.zeros_like(tokens), positions, cu_seqlens, np.ones(count, np.int64))


class TargetDecoder(nn.Module, ABC):
    """A decoder whose outputs [M, E] give logits [M, V] by the product with the token embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.projection = None if size is None else Linear(config.hidden_size, size)

    @abstractmethod
    def forward(self, embeddings: Embeddings, targets: Packed, source: EncodedSource) -> Tensor:
        """Compute the outputs at all target tokens, [M, E], each from the tokens up to it.

        Args:
            embeddings: The embeddings of the encoder.
            targets: The target sequences, one for each source.
            source: The sources.
        """

    @abstractmethod
    def start(self, source: EncodedSource) -> DecoderState:
        """Return the state of one empty hypothesis for each source."""

    @abstractmethod
    def step(self, embeddings: Embeddings, tokens: Tensor, state: DecoderState) -> Tensor:
        """Add a token, long [n], to each hypothesis, and return the outputs at these tokens, [n, E]."""

    def attention_weights(
        self, embeddings: Embeddings, targets: Packed, source: EncodedSource
    ) -> list[Tensor]:
        """Return the weights of the attention from one target to its source: for each layer a tensor [A, t, T]."""
        weights: list[Tensor] = []

        def record(module: Any, inputs: Any, _: Any) -> None:
            weights.append(module.weights(*inputs[:2]))

        modules = [m for m in self.modules() if isinstance(m, CrossAttention | AttentionScore)]
        handles = [module.register_forward_hook(record) for module in modules]
        try:
            self(embeddings, targets, source)
        finally:
            for handle in handles:
                handle.remove()
        return weights

    def logits(self, outputs: Tensor, token_embeddings: Tensor) -> Tensor:
        """Compute logits [M, V] of outputs [M, E]; the decoder has no output bias."""
        return linear(outputs, token_embeddings, None)

    def _project(self, x: Tensor) -> Tensor:
        return x if self.projection is None else self.projection(x)


class DecoderLayer(TransformerLayer):
    """A Transformer layer with cross-attention between its two sublayers."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config, generator)
        self.cross_attention = CrossAttention(config, generator)
        self.cross_attention_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(  # type: ignore[override]
        self, x: Tensor, layout: AttentionLayout, keys_and_values: Tensor, pairs: PairLayout
    ) -> Tensor:
        """Compute [M, H] → [M, H].

        Args:
            x: The input at the target tokens, [M, H].
            layout: The layout of the targets, with causal attention.
            keys_and_values: `cross_attention.key_value` of the source states, [S, 2H].
            pairs: The layout of targets and sources.
        """
        x = self._cross_attention(self._self_attention(x, layout), keys_and_values, pairs)
        return self._feed_forward(x)

    def step(  # type: ignore[override]
        self, x: Tensor, cache: KeyValueCache, keys_and_values: Tensor, pairs: PairLayout
    ) -> Tensor:
        """Compute the next token of each of n hypotheses, [n, H] → [n, H]."""
        x = self._cross_attention(self._step_self_attention(x, cache), keys_and_values, pairs)
        return self._feed_forward(x)

    def _cross_attention(self, x: Tensor, keys_and_values: Tensor, pairs: PairLayout) -> Tensor:
        inputs = self.cross_attention_norm(x) if self._norm_first else x
        output = self.cross_attention(inputs, keys_and_values, pairs)
        return self._add_residual(x, output, self.cross_attention_norm)


class _TransformerState(DecoderState):
    """The keys and values of each layer: of the source once, and of the target's tokens so far."""

    def __init__(self, source: EncodedSource, keys_and_values: list[Tensor]) -> None:
        super().__init__(source)
        self.keys_and_values = keys_and_values
        self.caches = [KeyValueCache() for _ in keys_and_values]

    def _select(self, hypotheses: Tensor) -> None:
        for cache in self.caches:
            cache.select(hypotheses)


class TransformerDecoder(TargetDecoder):
    """Decoder layers, as many as the encoder has, of the same sizes.

    The embeddings of a recurrent encoder have no positions, and so the decoder adds sinusoids to them, of about
    the size of the token vectors.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config)
        layers = [DecoderLayer(config, generator) for _ in range(config.num_hidden_layers)]
        self.blocks = nn.ModuleList(layers)
        has_positions = get_family(config.model_type).is_transformer
        self._sinusoids = None if has_positions else SinusoidalPositions(config)
        self._sinusoid_scale = config.initializer_range * 2**0.5
        is_pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps) if is_pre else None
        init_weights(self, config.initializer_range, generator)

    @property
    def layers(self) -> list[DecoderLayer]:
        """The layers in order."""
        return list(self.blocks)  # type: ignore[arg-type]

    def forward(self, embeddings: Embeddings, targets: Packed, source: EncodedSource) -> Tensor:
        """Compute the outputs at all target tokens, [M, E]."""
        x = self._embed(embeddings, targets)
        layout, pairs = source.target_layout(targets), source.layout(targets.lengths)
        for layer in self.layers:
            x = layer(x, layout, layer.cross_attention.key_value(source.states), pairs)
        return self._output(x)

    def start(self, source: EncodedSource) -> _TransformerState:
        """Return the state of one empty hypothesis for each source."""
        return _TransformerState(
            source, [layer.cross_attention.key_value(source.states) for layer in self.layers]
        )

    def step(self, embeddings: Embeddings, tokens: Tensor, state: DecoderState) -> Tensor:
        """Add a token to each hypothesis, and return the outputs at these tokens, [n, E]."""
        assert isinstance(state, _TransformerState)
        x, pairs = self._embed(embeddings, state.next_tokens(tokens)), state.source.layout(state.counts)
        for layer, cache, keys_and_values in zip(
            self.layers, state.caches, state.keys_and_values, strict=True
        ):
            x = layer.step(x, cache, keys_and_values, pairs)
        return self._output(x)

    def _embed(self, embeddings: Embeddings, targets: Packed) -> Tensor:
        x: Tensor = embeddings(targets)
        return x if self._sinusoids is None else x + self._sinusoid_scale * self._sinusoids(targets.positions)

    def _output(self, x: Tensor) -> Tensor:
        return self._project(x if self.norm is None else self.norm(x)).float()


class _RecurrentState(DecoderState):
    """The hidden and the cell state of the LSTM, [n, H] each."""

    def __init__(self, source: EncodedSource, hidden: Tensor, cell: Tensor) -> None:
        super().__init__(source)
        self.hidden, self.cell = hidden, cell

    def _select(self, hypotheses: Tensor) -> None:
        self.hidden, self.cell = self.hidden[hypotheses], self.cell[hypotheses]


class TargetLSTM(nn.LSTM):
    """An LSTM layer over packed sequences."""

    def forward(self, x: Tensor, targets: Packed, initial_state: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Compute the states [M, H] of inputs [M, H], from the first hidden and cell states, [B, H] each."""
        sequences = list(torch.split(x, targets.lengths.tolist()))
        packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
        hidden, cell = initial_state
        states, _ = super().forward(packed, (hidden[None], cell[None]))
        return torch.cat(nn.utils.rnn.unpack_sequence(states))


class RecurrentDecoder(TargetDecoder):
    """An LSTM layer; output tanh(W [h; c]) of its state h and a context c of the source (Luong et al. 2015).

    Its first state is a function of the source's summary: the state of the first token, of the last one in a
    causal encoder, or of both directions where each has a half of the states. The context is a weighted mean of
    the source states, or without attention the summary.
    """

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, score: ScoreName | Literal["none"] = "dot"
    ) -> None:
        """Build a decoder.

        Args:
            config: The model's sizes.
            generator: Draws weights and dropout.
            score: The score function of attention; none: one fixed vector.
        """
        super().__init__(config)
        size = config.hidden_size
        self._config = config
        self.lstm = TargetLSTM(size, size)
        self.initial = Linear(size, 2 * size)
        self.combine = Linear(2 * size, size)
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        init_weights(self, size**-0.5, generator)
        self.score = None if score == "none" else AttentionScore(config, generator, score)
        if not self.lstm.weight_ih_l0.is_meta:
            for parameter in self.lstm.parameters():  # torch's distribution, but from the run's generator
                nn.init.uniform_(parameter, -(size**-0.5), size**-0.5, generator=generator)

    def forward(self, embeddings: Embeddings, targets: Packed, source: EncodedSource) -> Tensor:
        """Compute the outputs at all target tokens, [M, E], in fp32, since errors add up from token to token."""
        with torch.autocast(source.states.device.type, enabled=False):
            states = self.lstm(embeddings(targets).float(), targets, self._initial_state(source))
            return self._output(states, source, targets.lengths)

    def start(self, source: EncodedSource) -> _RecurrentState:
        """Return the state of one empty hypothesis for each source."""
        return _RecurrentState(source, *self._initial_state(source))

    def step(self, embeddings: Embeddings, tokens: Tensor, state: DecoderState) -> Tensor:
        """Add a token to each hypothesis, and return the outputs at these tokens, [n, E]."""
        assert isinstance(state, _RecurrentState)
        x, count = embeddings(state.next_tokens(tokens)), len(tokens)
        padding = (0, 0, 0, max(0, MIN_ROWS - count))  # as in `linear`
        inputs, hidden, cell = (F.pad(t, padding) for t in (x, state.hidden, state.cell))
        lstm: Any = self.lstm
        weights = lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0
        hidden, cell = torch.lstm_cell(inputs, (hidden, cell), *weights)
        state.hidden, state.cell = hidden[:count], cell[:count]
        return self._output(state.hidden, state.source, state.counts)

    def _initial_state(self, source: EncodedSource) -> tuple[Tensor, Tensor]:
        hidden, cell = torch.tanh(self.initial(self._summary(source))).chunk(2, 1)
        return hidden.contiguous(), cell.contiguous()

    def _summary(self, source: EncodedSource) -> Tensor:
        return sequence_states(self._config, source.states, source.packed).float()

    def _output(self, queries: Tensor, source: EncodedSource, target_lengths: NDArray[np.int64]) -> Tensor:
        if self.score is None:
            context = source.repeat(self._summary(source), target_lengths)
        else:
            context = self.score(queries, source.states.float(), source.layout(target_lengths))
        return self._project(self.dropout(torch.tanh(self.combine(torch.cat([queries, context], 1)))))
