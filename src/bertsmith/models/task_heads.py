"""Heads of the tasks, and a linear-chain conditional random field over a sentence's tags (Lafferty et al. 2001).

A task head takes hidden states of tokens or of sequences (see `feature_extraction`), and lists its `parts`, the
modules that are saved, by their names in a model folder. A family's `HeadStructure` has its differences from BERT.

In the random field, the score of a path is the sum of its emissions (scores of each tag at each word, from the
token classifier), its transitions, and the scores of its first and last tag. Its functions take B sentences padded
to T words, with K tags, and compute in the precision of the emissions. pytorch-crf is not used: its last release
is of 2019.

Shapes: N tokens in a packed batch, M of them selected, B sequences, H hidden size, K labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertsmith.models.config import ModelConfig
from bertsmith.models.decoder import RecurrentDecoder, TransformerDecoder
from bertsmith.models.family import get_family
from bertsmith.models.feature_extraction import BiLSTM, LayerConcat, ScalarMix, SecondEncoder
from bertsmith.models.layers import ACTIVATIONS, Dropout, Linear
from bertsmith.models.pretraining_heads import MaskedLMHead, Pooler, ReplacedTokenHead, SentencePairHead
from bertsmith.models.weight_init import init_weights

FORBIDDEN_SCORE = -1e6
"""Score of a forbidden transition: the best path has one only if no other path exists."""


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

    BERT and ALBERT have a pooler, dropout, and a Linear, GPT has no pooler, and other families have `DenseHead`.
    With `pooled` False BERT and ALBERT have no pooler, as Devlin et al. 2019, section 4.1, describe it.
    """

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, outputs: int, *, pooled: bool = True
    ) -> None:
        super().__init__()
        structure = get_family(config.model_type).heads
        activation, dropout = structure.dense_act, structure.dense_dropout
        has_pooler = pooled and structure.pooler and activation is None
        self.pooler = Pooler(config, generator) if has_pooler else None
        if activation is None:
            self.classifier: nn.Module = LinearHead(config, generator, outputs)
        else:
            self.classifier = DenseHead(config, generator, outputs, activation, first_dropout=dropout)

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
        structure = get_family(config.model_type).heads
        activation = structure.choice_act
        self.pooler = Pooler(config, generator) if structure.pooler and activation is None else None
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


class ChainScores(NamedTuple):
    """The scores of a chain over K tags.

    Attributes:
        start: [K] or [B, K], of each tag as the first.
        transitions: [K, K], of a tag (column) after a tag (row).
        end: [K] or [B, K], of each tag as the last.
    """

    start: Tensor
    transitions: Tensor
    end: Tensor


class Crf(nn.Module):
    """Learned scores of a chain over K tags, initially 0, with pytorch-crf's parameter names.

    Attributes:
        lr_multiplier: Factor of the run's learning rate for these scores; a fine-tuning rate would hardly change
            them from 0.
    """

    lr_multiplier = 100.0

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.start_transitions = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        self.end_transitions = nn.Parameter(torch.zeros(tags))

    def add_to(self, chain: ChainScores) -> ChainScores:
        """Return the sum of the learned scores and those of another chain."""
        learned = self.start_transitions, self.transitions, self.end_transitions
        return ChainScores(*(x + y for x, y in zip(chain, learned, strict=True)))


def path_scores(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Return the score of one path per sentence, [B].

    Args:
        emissions: Scores of each tag at each word, [B, T, K].
        tags: The path, long [B, T]; any value after the end of a sentence.
        lengths: Words of each sentence, long [B], at least 1.
        chain: The scores of the chain.
    """
    mask = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    emission_scores = emissions.gather(2, tags[:, :, None])[:, :, 0]
    transition_scores = chain.transitions[tags[:, :-1], tags[:, 1:]]
    last_tags = tags.gather(1, lengths[:, None] - 1)
    start, end = (scores.expand(len(tags), -1) for scores in (chain.start, chain.end))
    end_scores = start.gather(1, tags[:, :1]) + end.gather(1, last_tags)
    return (emission_scores * mask).sum(1) + (transition_scores * mask[:, 1:]).sum(1) + end_scores[:, 0]


def log_partitions(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Return the logarithm of the sum of exp(score) over all paths of each sentence, [B]."""
    return torch.logsumexp(_forward(emissions, lengths, chain)[-1] + chain.end, 1)


def marginals(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Return the marginal probability of each tag at each word, [B, T, K], by the forward-backward algorithm.

    Values after a sentence's end are undefined.
    """
    alphas = _forward(emissions, lengths, chain)
    beta = chain.end.expand_as(alphas[0])
    betas = [beta]
    for t in range(emissions.shape[1] - 1, 0, -1):
        previous = torch.logsumexp(chain.transitions + (emissions[:, t] + beta)[:, None, :], 2)
        beta = torch.where((t < lengths)[:, None], previous, beta)
        betas.append(beta)
    return torch.softmax(torch.stack(alphas, 1) + torch.stack(betas[::-1], 1), 2)


def viterbi_decode(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> list[list[int]]:
    """Return the best path of each sentence by the Viterbi algorithm.

    Among equal scores the path with the lowest ids, compared from the end, wins. No sentence depends on the rest
    of the batch.
    """
    best = chain.start + emissions[:, 0]
    backpointers: list[Tensor] = []
    for t in range(1, emissions.shape[1]):
        scores, origins = (best[:, :, None] + chain.transitions).max(1)
        best = torch.where((t < lengths)[:, None], scores + emissions[:, t], best)
        backpointers.append(origins)
    last_tags = (best + chain.end).argmax(1).tolist()
    origin_lists = torch.stack(backpointers, 1).tolist() if backpointers else []
    paths = []
    for i, (tag, length) in enumerate(zip(last_tags, lengths.tolist(), strict=True)):
        path = [tag]
        for t in range(length - 2, -1, -1):
            path.append(origin_lists[i][t][path[-1]])
        paths.append(path[::-1])
    return paths


def _forward(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> list[Tensor]:
    """Return for each word the log-sum over all paths up to it that end in each tag, [B, K].

    After a sentence's end the values of its last word repeat.
    """
    alpha = chain.start + emissions[:, 0]
    alphas = [alpha]
    for t in range(1, emissions.shape[1]):
        extended = torch.logsumexp(alpha[:, :, None] + chain.transitions, 1) + emissions[:, t]
        alpha = torch.where((t < lengths)[:, None], extended, alpha)
        alphas.append(alpha)
    return alphas


PART_BUILDERS: Mapping[str, Callable[[ModelConfig, torch.Generator, int], nn.Module]] = {
    "mix": lambda config, _, __: ScalarMix(config),
    "joined": lambda config, generator, _: LayerConcat(config, generator),
    "beside": lambda config, generator, _: SecondEncoder(config, generator),
    "recurrent": lambda config, generator, _: BiLSTM(config, generator, config.hidden_size),
    "recurrent4": lambda config, generator, _: BiLSTM(config, generator, 4 * config.hidden_size),
    "pooler": lambda config, generator, _: Pooler(config, generator),
    "masked": lambda config, generator, _: MaskedLMHead(config, generator),
    "masked_backward": lambda config, generator, _: MaskedLMHead(config, generator),
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
    "decoder": lambda config, generator, _: TransformerDecoder(config, generator),
    "recurrent_decoder": lambda config, generator, _: RecurrentDecoder(config, generator),
    "bilinear_decoder": lambda config, generator, _: RecurrentDecoder(config, generator, "bilinear"),
    "concat_decoder": lambda config, generator, _: RecurrentDecoder(config, generator, "concat"),
    "additive_decoder": lambda config, generator, _: RecurrentDecoder(config, generator, "additive"),
}
"""Builders of all parts besides the encoder, in forward order; the last argument is the number of outputs."""
