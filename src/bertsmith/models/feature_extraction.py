"""Feature extraction between encoder and head: pooling, a choice of layers, a BiLSTM on them, or a second encoder.

The last three are from Devlin et al. 2019, sections 5.1 and 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.models.config import Layers, ModelConfig, Pooling
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, get_family
from bertsmith.models.layers import Linear
from bertsmith.models.weight_init import init_weights
from bertsmith.packed import Packed

FEATURE_PARTS = frozenset({"mix", "joined", "recurrent", "recurrent4", "beside"})
"""The parts between encoder and head, by their names in a model folder."""


_EXCLUDED = -1e4  # logit of a layer with weight 0


class ScalarMix(nn.Module):
    """A weighted sum of layers, scale · Σ softmax(weights) · states (Peters et al. 2018, equation 1).

    The states are the outputs of the embeddings and of each layer. With a single layer nothing is trained.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))
        self.scale = nn.Parameter(torch.ones(1))

    def select_layers(self, layers: Sequence[int]) -> None:
        """Set equal weights on these layers and exclude the others; 0 is the embeddings' output."""
        with torch.no_grad():
            self.weights.fill_(_EXCLUDED)
            self.weights[list(layers)] = 0.0
        self.requires_grad_(len(layers) > 1)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Mix L + 1 tensors [N, H] (L layers, N tokens, H hidden size) to [N, H]."""
        weights = self.weights.softmax(0)
        return self.scale * torch.einsum("l,lnh->nh", weights, torch.stack(list(states)).float())


class BiLSTM(nn.Module):
    """A two-layer bidirectional LSTM over each sequence: [N, inputs] → [N, H], H/2 per direction."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, inputs: int) -> None:
        super().__init__()
        direction_size, remainder = divmod(config.hidden_size, 2)
        if remainder:
            message = f"a BiLSTM has half of the hidden size per direction, and {config.hidden_size} is odd"
            hint = f"use {option('head', 'linear')}, or a model with an even hidden size"
            raise InputError("odd_hidden_size", message, argument="head", hint=hint)
        self.lstm = nn.LSTM(inputs, direction_size, num_layers=2, bidirectional=True)
        if not self.lstm.weight_ih_l0.is_meta:
            self.to(generator.device)
            bound = direction_size**-0.5
            for parameter in self.lstm.parameters():  # torch's distribution, but from the run's generator
                nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Compute the states in fp32 of each sequence of a batch.

        Rounding errors of lower precision would add up from token to token, and torch has no bf16 LSTM on
        machines without bf16 products.
        """
        with torch.autocast(x.device.type, enabled=False):
            sequences = list(torch.split(x.float(), packed.lengths.tolist()))
            output, _ = self.lstm(nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False))
            return torch.cat(nn.utils.rnn.unpack_sequence(output))


class SecondEncoder(nn.Module):
    """A second encoder of the other direction, and a Linear on both encoders' states: [N, 2H] → [N, H].

    The two causal encoders are pre-trained separately (Peters et al. 2018, section 3.1; Devlin et al. 2019,
    section 5.1).
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        if not config.causal:
            message = "a second encoder needs a causal model, and this one attends to both sides"
            hint = f"fine-tune a model pre-trained with {option('objective.name', 'causal')}, or omit it"
            raise InputError("second_encoder_not_causal", message, argument="task.second_encoder", hint=hint)
        other_config = config.model_copy(update={"backwards": not config.backwards})
        self.encoder = build_encoder(other_config, generator)
        self.linear = Linear(2 * config.hidden_size, config.hidden_size)
        init_weights(self.linear, config.initializer_range, generator)

    def forward(
        self, encoder: Encoder, packed: Packed, rows: Tensor | None, other_rows: Tensor | None
    ) -> Tensor:
        """Join the states of the tokens `rows` and the second encoder's states of `other_rows` to [M, H]."""
        states = [encoder(packed, rows=rows), self.encoder(packed, rows=other_rows)]
        joined: Tensor = self.linear(torch.cat(states, 1))
        return joined


class FeatureExtractor(nn.Module):
    """The input of a head: states of some layers, of a BiLSTM on them, or of two encoders."""

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        layers: Layers = "last",
        *,
        recurrent: bool = False,
        second_encoder: bool = False,
    ) -> None:
        super().__init__()
        if second_encoder and (recurrent or layers != "last"):
            message = "a second encoder excludes a BiLSTM and a choice of layers"
            hint = f"omit {option('head')} and {option('layers')}"
            raise InputError(
                "second_encoder_with_features", message, argument="task.second_encoder", hint=hint
            )
        self._config = config
        self._layers: Layers = layers
        self._recurrent, self._two_encoders = recurrent, second_encoder
        if "four" in layers and config.num_hidden_layers < 4:
            message = (
                f"{layers} needs 4 layers, and the model has {pluralize(config.num_hidden_layers, 'layer')}"
            )
            raise InputError("too_few_layers", message, argument="layers", hint="choose last or sum_all")
        if layers == "concat_last_four" and not recurrent:
            self.joined = LayerConcat(config, generator)
        elif layers == "concat_last_four":
            self.recurrent4 = BiLSTM(config, generator, 4 * config.hidden_size)
        elif layers != "last":
            self.mix = ScalarMix(config).to(generator.device)
            self.mix.select_layers(self.layers)
        if recurrent and layers != "concat_last_four":
            self.recurrent = BiLSTM(config, generator, config.hidden_size)
        if second_encoder:
            self.beside = SecondEncoder(config, generator)

    @property
    def layers(self) -> list[int]:
        """Return the indices of the layers; 0 is the embeddings' output."""
        return layer_indices(self._layers, self._config.num_hidden_layers)

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        """Return the modules by their names in a model folder."""
        return dict(self.named_children())

    def sequence_features(self, encoder: Encoder, packed: Packed) -> Tensor:
        """Return the input of sequence heads, [B, H].

        For an encoder it is the state of the first token; of the last one in a causal model (Radford et al. 2018).
        For a BiLSTM, and an encoder whose states have a half for each direction, it is the last state of each
        direction: the forward half at the last token and the backward half at the first. The paper does not say
        which states table 5 uses; only there has each half read the whole sequence. For two encoders it is each
        one's last state. For an NNLM, whose states depend on a few tokens each, it is the mean of all states.
        """
        if has_mean_state(self._config) and not self._recurrent:
            return packed.mean(self(encoder, packed))
        rows = summary_rows(self._config, packed)
        if self._two_encoders:
            other_rows = summary_rows(self.beside.encoder.config, packed)
            return self.beside(encoder, packed, rows, other_rows)  # type: ignore[no-any-return]
        if not (self._recurrent or has_direction_halves(self._config)):
            return self(encoder, packed, rows)  # type: ignore[no-any-return]
        ends = torch.cat([packed.last_token_rows, packed.first_token_rows])
        last, first = self(encoder, packed, ends).view(2, -1, self._config.hidden_size)
        direction_size = self._config.hidden_size // 2
        return torch.cat([last[:, :direction_size], first[:, direction_size:]], 1)

    def forward(self, encoder: Encoder, packed: Packed, rows: Tensor | None = None) -> Tensor:
        """Return the input of token heads, [N, H], or [M, H] for the tokens `rows`, long [M]."""
        if self._two_encoders:
            return self.beside(encoder, packed, rows, rows)  # type: ignore[no-any-return]
        if self._layers == "last" and not self._recurrent:
            return encoder(packed, rows=rows)  # type: ignore[no-any-return]
        x = self._all_tokens(encoder, packed)
        return x if rows is None else x[rows]

    def _all_tokens(self, encoder: Encoder, packed: Packed) -> Tensor:
        """Return the features of all tokens for other layers than the last or a BiLSTM, [N, H]."""
        if self._layers == "concat_last_four":
            x = torch.cat(encoder.hidden_states(packed)[-4:], 1)
            return self.recurrent4(x, packed) if self._recurrent else self.joined(x)  # type: ignore[no-any-return]
        x = encoder(packed) if self._layers == "last" else self.mix(encoder.hidden_states(packed))
        return self.recurrent(x, packed) if self._recurrent else x  # type: ignore[no-any-return]


def has_direction_halves(config: ModelConfig) -> bool:
    """Return True if a hidden state is [forward; backward], a half for each direction."""
    return not config.causal and get_family(config.model_type).heads.direction_halves


def has_mean_state(config: ModelConfig) -> bool:
    """Return True if sequence heads read the mean of the hidden states."""
    return get_family(config.model_type).heads.mean_state


def sequence_states(config: ModelConfig, states: Tensor, packed: Packed) -> Tensor:
    """Return the state of each sequence, [B, H], of the last hidden states of all tokens, [N, H].

    It is what `FeatureExtractor.sequence_features` returns for an encoder.
    """
    if has_mean_state(config):
        return packed.mean(states)
    if not has_direction_halves(config):
        return states[summary_rows(config, packed)]
    size = config.hidden_size // 2
    last, first = states[packed.last_token_rows, :size], states[packed.first_token_rows, size:]
    return torch.cat([last, first], 1)


def summary_rows(config: ModelConfig, packed: Packed) -> Tensor:
    """Return the row of each sequence whose state depends on the whole sequence, long [B]."""
    is_last = config.attention_direction == "before"
    rows: Tensor = packed.last_token_rows if is_last else packed.first_token_rows
    return rows


class LayerConcat(nn.Module):
    """A Linear on the concatenated states of four layers: [N, 4H] → [N, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = Linear(4 * config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the Linear without an activation: with a linear head it is one linear head on all four layers."""
        return self.linear(x)  # type: ignore[no-any-return]


def layer_indices(layers: Layers, num_layers: int) -> list[int]:
    """Return the indices of a choice of layers; 0 is the embeddings' output."""
    return {
        "last": [num_layers],
        "second_to_last": [num_layers - 1],
        "embeddings": [0],
        "sum_last_four": list(range(num_layers - 3, num_layers + 1)),
        "concat_last_four": list(range(num_layers - 3, num_layers + 1)),
        "sum_all": list(range(1, num_layers + 1)),
        "sum_with_embeddings": list(range(num_layers + 1)),
    }[layers]


def pool(encoder: Encoder, packed: Packed, pooling: Pooling) -> Tensor:
    """Pool the encoder's last hidden states to one vector per sequence, fp32 [B, H].

    Each sequence is reduced separately, so its vector does not depend on the rest of the batch.
    """
    if pooling == "cls":
        return encoder(packed, rows=packed.first_token_rows).float()  # type: ignore[no-any-return]
    states = encoder(packed).float()
    if pooling == "max":
        return torch.stack([state.amax(0) for state in torch.split(states, packed.lengths.tolist())])
    return packed.mean(states)
