"""Heads that stand on the encoder: pooler, masked LM, sentence pair, and those of tasks (spec 2.5).

A head of a task reads hidden states, of tokens or one of each sequence (see `features`), and names its `parts` as
a model folder has them; where a family's differ from BERT's, its `HeadShape` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.kernels.reference import TORCH, Kernels
from bertsmith.models.config import ModelConfig
from bertsmith.models.crf import Crf
from bertsmith.models.family import family
from bertsmith.models.feature_extraction import BiLstm, JoinedLayers, LayerMix, OtherDirection
from bertsmith.models.fused_cross_entropy import table_loss
from bertsmith.models.layers import ACTIVATIONS, Dropout, Linear, Table, linear
from bertsmith.models.weight_init import draw_weights

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
"""What the field's config.json calls what a sequence head answers."""


class Pooler(nn.Module):
    """tanh(Linear) of each sequence's first hidden state: [B, H] → [B, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, config.hidden_size)
        draw_weights(self, config.initializer_range, generator)

    def forward(self, first_rows: Tensor) -> Tensor:
        """`first_rows` is hidden[packed.first_rows], [B, H]."""
        return torch.tanh(self.linear(first_rows))


class MaskedHead(nn.Module):
    """Masked LM: LN(act(Linear)), then the token table itself as the decoder, with a bias of its own.

    The table is handed over at each call, so it stays one tensor with one owner; a head that is not tied decodes
    with its own. The Linear goes from H to the table's width E.
    """

    kernels: Kernels = TORCH

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.embedding_width)
        self.activation = ACTIVATIONS[family(config.model_type).heads.masked_act or config.hidden_act]
        self.norm = nn.LayerNorm(config.embedding_width, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.tied = config.tie_word_embeddings
        self.decoder = None if self.tied else Table(config.vocab_size, config.embedding_width)
        draw_weights(self, config.initializer_range, generator)

    def forward(self, hidden_rows: Tensor, table: Tensor) -> Tensor:
        """Logits [M, V] of hidden rows [M, H] over the token table [V, E]; hand over predicted rows only."""
        return linear(self.transformed(hidden_rows), self.table(table), self.bias, self.kernels)

    def loss(self, hidden_rows: Tensor, table: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of M rows with labels long [M], fp32, and how many are right at the top.

        Equals `F.cross_entropy(head(hidden_rows, table), labels, reduction="sum")`, in one buffer of [M, V].
        """
        return table_loss(self.transformed(hidden_rows), self.table(table), self.bias, labels, self.kernels)

    def transformed(self, hidden_rows: Tensor) -> Tensor:
        """LN(act(Linear)): [M, H] → [M, E], what is compared with each token's vector."""
        return self.norm(self.activation(self.transform(hidden_rows)))  # type: ignore[no-any-return]

    def table(self, tokens: Tensor) -> Tensor:
        """What it compares with, [V, E]: the encoder's token table, or its own."""
        return tokens if self.decoder is None else self.decoder.weight


class PairHead(nn.Module):
    """Next sentence (0 = B follows A, as in the release, unless the data has it as 1) or sentence order (0 = in
    order): [B, H] → [B, 2]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        drops = family(config.model_type).heads.pair_dropout
        self.dropout = Dropout(config.head_dropout if drops else 0.0, generator)
        self.linear = Linear(config.hidden_size, 2)
        draw_weights(self, config.initializer_range, generator)

    def forward(self, pooled: Tensor) -> Tensor:
        """Pooled [B, H] → logits [B, 2]."""
        return self.linear(self.dropout(pooled))  # type: ignore[no-any-return]


class ReplacedHead(nn.Module):
    """Whether each token was replaced: Linear, activation, Linear (Clark et al. 2020): [N, H] → logits [N]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.linear = Linear(config.hidden_size, 1)
        draw_weights(self, config.initializer_range, generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, H] → [N]; above 0 the token is likelier another's than the text's own."""
        return self.linear(self.activation(self.dense(hidden)))[:, 0]  # type: ignore[no-any-return]


class ClassHead(nn.Module):
    """Dropout and Linear: [M, H] → logits [M, K]. One label makes it a regression. states: how many hidden states
    a row joins; dropout: where it is not that of heads."""

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        labels: int = 2,
        states: int = 1,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(config.head_dropout if dropout is None else dropout, generator)
        self.linear = Linear(states * config.hidden_size, labels)
        draw_weights(self, config.initializer_range, generator)

    def forward(self, rows: Tensor) -> Tensor:
        """[M, states · H] → [M, K]."""
        return self.linear(self.dropout(rows))  # type: ignore[no-any-return]


class DenseClassHead(nn.Module):
    """Dropout, Linear, activation, dropout, Linear: a classifier that needs no pooler. [M, H] → logits [M, K].

    first_dropout: whether there is the first of the two.
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
        draw_weights(self, config.initializer_range, generator)

    def forward(self, rows: Tensor) -> Tensor:
        """[M, H] → [M, K]."""
        inner = self.activation(self.dense(self.first_dropout(rows)))
        return self.linear(self.dropout(inner))  # type: ignore[no-any-return]


class SentenceHead(nn.Module):
    """From a state of each sequence to K outputs, the family's way: [B, H] → [B, K].

    BERT and ALBERT: the pooler, dropout, Linear; the others: a classifier with a layer of its own, no pooler.
    pooled: whether BERT's and ALBERT's have the pooler; without it the Linear reads the hidden state itself, as
    Devlin et al. 2019, section 4.1, write it.
    """

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, outputs: int, *, pooled: bool = True
    ) -> None:
        super().__init__()
        shape = family(config.model_type).heads
        self.pooler = Pooler(config, generator) if pooled and shape.dense_act is None else None
        self.classifier: nn.Module = (
            ClassHead(config, generator, outputs)
            if shape.dense_act is None
            else DenseClassHead(
                config, generator, outputs, shape.dense_act, first_dropout=shape.dense_dropout
            )
        )

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules by the names that a model folder has for them."""
        return dict(self.named_children())

    def forward(self, rows: Tensor) -> Tensor:
        """[B, H] → [B, K]."""
        return self.classifier(rows if self.pooler is None else self.pooler(rows))  # type: ignore[no-any-return]


class TokenHead(nn.Module):
    """Dropout and Linear on every token: [N, H] → [N, K]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, outputs: int) -> None:
        super().__init__()
        own = config.hidden_dropout_prob if family(config.model_type).heads.token_dropout else None
        self.tagger = ClassHead(config, generator, outputs, dropout=own)

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules by the names that a model folder has for them."""
        return dict(self.named_children())

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, H] → [N, K]."""
        return self.tagger(hidden)  # type: ignore[no-any-return]


class SpanTransform(nn.Module):
    """activation(Linear) of each hidden state, which a span's ends are then read from: [N, H] → [N, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        draw_weights(self, config.initializer_range, generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, H] → [N, H]."""
        return self.activation(self.linear(hidden))


class SpanHead(nn.Module):
    """Linear to the two scores of a span's ends on every token: [N, H] → [N, 2] (start, end).

    transform: whether there is a layer before it; Devlin et al. 2019, section 4.2, have the two vectors alone."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, *, transform: bool = False) -> None:
        super().__init__()
        drops = family(config.model_type).heads.token_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if drops else 0.0, generator)
        self.span = Linear(config.hidden_size, 2)
        draw_weights(self.span, config.initializer_range, generator)
        self.span_transform = SpanTransform(config, generator) if transform else None

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules by the names that a model folder has for them."""
        parts = {"span": self.span, "span_transform": self.span_transform}
        return {name: module for name, module in parts.items() if module is not None}

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, H] → [N, 2]."""
        rows = self.dropout(hidden)
        scores: Tensor = self.span(rows if self.span_transform is None else self.span_transform(rows))
        return scores


class ChoiceHead(nn.Module):
    """A score a sequence, [B, H] → [B]: pooler, dropout, a vector V (Devlin et al. 2019, section 4.4).

    The field's classes for multiple choice have the pooler in each family that has one, RoBERTa too; the others'
    have a layer of their own.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        activation = family(config.model_type).heads.choice_act
        self.pooler = Pooler(config, generator) if activation is None else None
        self.chooser: nn.Module = (
            ClassHead(config, generator, 1)
            if activation is None
            else DenseClassHead(config, generator, 1, activation, first_dropout=False)
        )

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules by the names that a model folder has for them."""
        return dict(self.named_children())

    def forward(self, rows: Tensor) -> Tensor:
        """[B, H] → [B]."""
        return self.chooser(rows if self.pooler is None else self.pooler(rows))[:, 0]  # type: ignore[no-any-return]


class RelationHead(nn.Module):
    """From two hidden states of a text, those at the opening markers of its entities, joined, to K outputs.

    Dropout and Linear (Baldini Soares et al. 2019, "entity start")."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, outputs: int) -> None:
        super().__init__()
        self.relater = ClassHead(config, generator, outputs, states=2)

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules by the names that a model folder has for them."""
        return dict(self.named_children())

    def forward(self, rows: Tensor) -> Tensor:
        """Hidden states [2B, H], of the first and of the second entity of each text → [B, K]."""
        return self.relater(rows.view(-1, 2 * rows.shape[1]))  # type: ignore[no-any-return]


PARTS: Mapping[str, Callable[[ModelConfig, torch.Generator, int], nn.Module]] = {
    "mix": lambda config, _, __: LayerMix(config),
    "joined": lambda config, generator, _: JoinedLayers(config, generator),
    "beside": lambda config, generator, _: OtherDirection(config, generator),
    "recurrent": lambda config, generator, _: BiLstm(config, generator, config.hidden_size),
    "recurrent4": lambda config, generator, _: BiLstm(config, generator, 4 * config.hidden_size),
    "pooler": lambda config, generator, _: Pooler(config, generator),
    "masked": lambda config, generator, _: MaskedHead(config, generator),
    "pair": lambda config, generator, _: PairHead(config, generator),
    "detector": lambda config, generator, _: ReplacedHead(config, generator),
    "classifier": lambda config, generator, outputs: SentenceHead(config, generator, outputs).classifier,
    "tagger": lambda config, generator, outputs: TokenHead(config, generator, outputs).tagger,
    "crf": lambda config, generator, outputs: Crf(outputs),
    "span": lambda config, generator, _: SpanHead(config, generator).span,
    "span_transform": lambda config, generator, _: SpanTransform(config, generator),
    "chooser": lambda config, generator, _: ChoiceHead(config, generator).chooser,
    "relater": lambda config, generator, outputs: RelationHead(config, generator, outputs).relater,
}
"""What makes each part that may stand on an encoder, in the order data passes; given its number of outputs where
it has a choice."""
