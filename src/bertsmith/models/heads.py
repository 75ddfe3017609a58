"""Heads of the encoder: pooler, masked LM, sentence pair, and task heads.

A task head takes hidden states of tokens or of sequences (see `feature_extraction`), and lists its `parts`, the
modules that are saved, by their names in a model folder. A family's `HeadStructure` has its differences from BERT.

Shapes: N tokens in a packed batch, M of them selected, B sequences, H hidden size, E embedding size, V vocabulary
size, K labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.models.config import ModelConfig
from bertsmith.models.crf import Crf
from bertsmith.models.family import get_family
from bertsmith.models.feature_extraction import BiLSTM, LayerConcat, ScalarMix, SecondEncoder
from bertsmith.models.fused_cross_entropy import fused_cross_entropy
from bertsmith.models.layers import ACTIVATIONS, Dropout, Embedding, Linear, linear
from bertsmith.models.weight_init import init_weights

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
"""The problem types of sequence classification in Hugging Face's config.json."""


class Pooler(nn.Module):
    """tanh(Linear) on each sequence's first hidden state: [B, H] → [B, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    def forward(self, first_states: Tensor) -> Tensor:
        """Pool the states of the first tokens, [B, H] (`hidden[packed.first_token_rows]`)."""
        return torch.tanh(self.linear(first_states))


class MaskedLMHead(nn.Module):
    """The masked LM head: LayerNorm(activation(Linear)) from H to E, then the decoder with a bias.

    A tied decoder's weights are the token embeddings, which each call gets as an argument, so that only the
    encoder owns the parameter. A head that is not tied has its own decoder.
    """

    kernels: KernelBackend = REFERENCE

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.embedding_dim)
        self.activation = ACTIVATIONS[get_family(config.model_type).heads.masked_act or config.hidden_act]
        self.norm = nn.LayerNorm(config.embedding_dim, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.tied = config.tie_word_embeddings
        self.decoder = None if self.tied else Embedding(config.vocab_size, config.embedding_dim)
        init_weights(self, config.initializer_range, generator)

    def forward(self, hidden_rows: Tensor, embedding: Tensor) -> Tensor:
        """Compute the logits [M, V] of selected tokens' states [M, H] with token embeddings [V, E]."""
        return linear(
            self.decoder_inputs(hidden_rows), self.decoder_weight(embedding), self.bias, self.kernels
        )

    def loss(self, hidden_rows: Tensor, embedding: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of cross-entropies, fp32, and the number of correct predictions; labels are long [M].

        The sum equals `F.cross_entropy(head(hidden_rows, embedding), labels, reduction="sum")`, but needs only one
        buffer [M, V].
        """
        return fused_cross_entropy(
            self.decoder_inputs(hidden_rows), self.decoder_weight(embedding), self.bias, labels, self.kernels
        )

    def decoder_inputs(self, hidden_rows: Tensor) -> Tensor:
        """Compute the input of the decoder, LayerNorm(activation(Linear)): [M, H] → [M, E]."""
        return self.norm(self.activation(self.transform(hidden_rows)))  # type: ignore[no-any-return]

    def decoder_weight(self, embedding: Tensor) -> Tensor:
        """Return the decoder's weights, [V, E]: the given token embeddings if tied, or else its own."""
        return embedding if self.decoder is None else self.decoder.weight


class SentencePairHead(nn.Module):
    """The sentence-pair head on pooled states: [B, H] → [B, 2].

    For next sentence prediction label 0 means that segment B follows A, as in BERT's release, unless the training
    data uses 1 (`is_next_label`). For sentence order prediction 0 means in order.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        has_dropout = get_family(config.model_type).heads.pair_dropout
        self.dropout = Dropout(config.head_dropout if has_dropout else 0.0, generator)
        self.linear = Linear(config.hidden_size, 2)
        init_weights(self, config.initializer_range, generator)

    def forward(self, pooled: Tensor) -> Tensor:
        """Compute logits [B, 2] of pooled states [B, H]."""
        return self.linear(self.dropout(pooled))  # type: ignore[no-any-return]


class ReplacedTokenHead(nn.Module):
    """The replaced-token detection head (Clark et al. 2020): Linear, activation, Linear, [N, H] → logits [N]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.linear = Linear(config.hidden_size, 1)
        init_weights(self, config.initializer_range, generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits [N] of tokens [N, H]; above 0 the token was probably replaced."""
        return self.linear(self.activation(self.dense(hidden)))[:, 0]  # type: ignore[no-any-return]


class LinearHead(nn.Module):
    """Dropout and Linear: [M, H] → logits [M, K]."""

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        labels: int = 2,
        states: int = 1,
        dropout: float | None = None,
    ) -> None:
        """Build the head.

        Args:
            config: The model's sizes.
            generator: Draws weights and dropout.
            labels: Number of labels K; 1 for regression.
            states: Number of hidden states that are concatenated to one input.
            dropout: Dropout probability; None: the config's for heads.
        """
        super().__init__()
        self.dropout = Dropout(config.head_dropout if dropout is None else dropout, generator)
        self.linear = Linear(states * config.hidden_size, labels)
        init_weights(self, config.initializer_range, generator)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute logits [M, K] of rows [M, states · H]."""
        return self.linear(self.dropout(rows))  # type: ignore[no-any-return]


class DenseHead(nn.Module):
    """A classifier without a pooler: dropout, Linear, activation, dropout, Linear; [M, H] → logits [M, K].

    `first_dropout` False omits the first dropout.
    """

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        labels: int,
        activation: str,
        *,
        first_dropout: bool = True,
    ) -> None:
        super().__init__()
        self.first_dropout = Dropout(config.head_dropout if first_dropout else 0.0, generator)
        self.dropout = Dropout(config.head_dropout, generator)
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.linear = Linear(config.hidden_size, labels)
        init_weights(self, config.initializer_range, generator)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute logits [M, K] of rows [M, H]."""
        dense = self.activation(self.dense(self.first_dropout(rows)))
        return self.linear(self.dropout(dense))  # type: ignore[no-any-return]


class TaskHead(nn.Module):
    """The base of task heads."""

    @property
    def parts(self) -> dict[str, nn.Module]:
        """Return the modules by their names in a model folder."""
        return dict(self.named_children())


class SequenceClassificationHead(TaskHead):
    """The family's sequence classification head: [B, H] → [B, K].

    BERT and ALBERT have a pooler, dropout, and a Linear; other families have `DenseHead`. With `pooled` False BERT
    and ALBERT have no pooler, as Devlin et al. 2019, section 4.1, describe it.
    """

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, outputs: int, *, pooled: bool = True
    ) -> None:
        super().__init__()
        structure = get_family(config.model_type).heads
        self.pooler = Pooler(config, generator) if pooled and structure.dense_act is None else None
        self.classifier: nn.Module = (
            LinearHead(config, generator, outputs)
            if structure.dense_act is None
            else DenseHead(
                config, generator, outputs, structure.dense_act, first_dropout=structure.dense_dropout
            )
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Compute logits [B, K] of states [B, H]."""
        return self.classifier(rows if self.pooler is None else self.pooler(rows))  # type: ignore[no-any-return]


class TokenClassificationHead(TaskHead):
    """The token classification head, dropout and Linear: [N, H] → [N, K]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, outputs: int) -> None:
        super().__init__()
        dropout = config.hidden_dropout_prob if get_family(config.model_type).heads.token_dropout else None
        self.tagger = LinearHead(config, generator, outputs, dropout=dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits [N, K] of tokens [N, H]."""
        return self.tagger(hidden)  # type: ignore[no-any-return]


class SpanTransform(nn.Module):
    """activation(Linear) of hidden states below a span head: [N, H] → [N, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        init_weights(self, config.initializer_range, generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform tokens [N, H] to [N, H]."""
        return self.activation(self.linear(hidden))


class SpanHead(TaskHead):
    """A Linear to the start and end scores of every token: [N, H] → [N, 2].

    With `transform` a `SpanTransform` precedes it; Devlin et al. 2019, section 4.2, have the Linear alone.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator, *, transform: bool = False) -> None:
        super().__init__()
        has_dropout = get_family(config.model_type).heads.token_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if has_dropout else 0.0, generator)
        self.span = Linear(config.hidden_size, 2)
        init_weights(self.span, config.initializer_range, generator)
        self.span_transform = SpanTransform(config, generator) if transform else None

    @property
    def parts(self) -> dict[str, nn.Module]:
        """Return the modules by their names in a model folder."""
        return {name: module for name, module in super().parts.items() if name != "dropout"}

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute scores [N, 2] of tokens [N, H]."""
        x = self.dropout(hidden)
        scores: Tensor = self.span(x if self.span_transform is None else self.span_transform(x))
        return scores


class MultipleChoiceHead(TaskHead):
    """The multiple-choice head, one score per sequence (Devlin et al. 2019, section 4.4): [B, H] → [B].

    As in transformers, families with a pooler have it here, RoBERTa too; the others have a dense layer.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        activation = get_family(config.model_type).heads.choice_act
        self.pooler = Pooler(config, generator) if activation is None else None
        self.chooser: nn.Module = (
            LinearHead(config, generator, 1)
            if activation is None
            else DenseHead(config, generator, 1, activation, first_dropout=False)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Compute scores [B] of states [B, H]."""
        return self.chooser(rows if self.pooler is None else self.pooler(rows))[:, 0]  # type: ignore[no-any-return]


class RelationHead(TaskHead):
    """The relation head: dropout and Linear on the states at both entities' start markers.

    This is "entity start" of Baldini Soares et al. 2019.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator, outputs: int) -> None:
        super().__init__()
        self.relater = LinearHead(config, generator, outputs, states=2)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute logits [B, K] of states [2B, H], the first and second entity of each text."""
        return self.relater(rows.view(-1, 2 * rows.shape[1]))  # type: ignore[no-any-return]


PART_BUILDERS: Mapping[str, Callable[[ModelConfig, torch.Generator, int], nn.Module]] = {
    "mix": lambda config, _, __: ScalarMix(config),
    "joined": lambda config, generator, _: LayerConcat(config, generator),
    "beside": lambda config, generator, _: SecondEncoder(config, generator),
    "recurrent": lambda config, generator, _: BiLSTM(config, generator, config.hidden_size),
    "recurrent4": lambda config, generator, _: BiLSTM(config, generator, 4 * config.hidden_size),
    "pooler": lambda config, generator, _: Pooler(config, generator),
    "masked": lambda config, generator, _: MaskedLMHead(config, generator),
    "pair": lambda config, generator, _: SentencePairHead(config, generator),
    "detector": lambda config, generator, _: ReplacedTokenHead(config, generator),
    "classifier": lambda config, generator, outputs: (
        SequenceClassificationHead(config, generator, outputs).classifier
    ),
    "tagger": lambda config, generator, outputs: TokenClassificationHead(config, generator, outputs).tagger,
    "crf": lambda config, generator, outputs: Crf(outputs),
    "span": lambda config, generator, _: SpanHead(config, generator).span,
    "span_transform": lambda config, generator, _: SpanTransform(config, generator),
    "chooser": lambda config, generator, _: MultipleChoiceHead(config, generator).chooser,
    "relater": lambda config, generator, outputs: RelationHead(config, generator, outputs).relater,
}
"""Builders of all parts besides the encoder, in forward order; the last argument is the number of outputs."""
