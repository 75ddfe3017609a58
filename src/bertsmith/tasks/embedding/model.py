"""A bi-encoder: texts are encoded separately, and compared by cosine (Reimers and Gurevych 2019).

An item has the sequences of a query and its passages.

In-batch losses (softmax, cosent) compare the items of a micro-batch (`train.batch_size`). Gradient accumulation
adds micro-batches and does not make them larger: two batches of 16 are not one of 32, which has twice as many
passages to choose from. The items of a batch are a function of seed, epoch, and index, so that a resumed run
equals an uninterrupted one. A threshold of the cosine for pairs that match is calibrated on validation data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.artifacts.sentence_transformers import SentenceEmbeddingConfig, sentence_transformers_files
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.feature_extraction import pool
from bertsmith.objectives.objective import MODEL, ModelParts
from bertsmith.packed import Packed
from bertsmith.tasks.base import Decoder, Metadata, TaskEncoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch, TokenSequence, pack, run_batched
from bertsmith.tasks.embedding.data import DataFormat, EmbeddingExample, target
from bertsmith.tasks.results import INTERNAL, Prediction
from bertsmith.tasks.settings import EmbedSettings
from bertsmith.tasks.targets import Target, find_label
from bertsmith.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class EmbeddingItem(Item):
    """The sequences of a query, its positives, and its negatives.

    Attributes:
        num_positives: The number of positives.
        positive_keys: The keys of all positives of the example.
    """

    num_positives: int = 0
    positive_keys: frozenset[bytes] = frozenset()

    def in_epoch(self, epoch: int) -> EmbeddingItem:
        """Return the item with one of its positives and one of its negatives, which change with the epoch."""
        query, *others = self.sequences
        parts = (others[: self.num_positives], others[self.num_positives :])
        passages = [part[epoch % len(part)] for part in parts if part]
        return replace(self, sequences=(query, *passages), num_positives=min(1, self.num_positives))


class EmbeddingEncoder(TaskEncoder):
    """Encode [CLS] text [SEP] for each text of an example, truncated."""

    def encode(self, examples: Sequence[EmbeddingExample], tokenizer: Tokenizer) -> list[Item]:
        """Return one item for each example; equal texts share a sequence."""
        texts = list(dict.fromkeys(text for example in examples for text in example.texts))
        encodings = tokenizer.encode_batch(texts, max_length=self.max_length, with_offsets=False)
        sequences = dict(zip(texts, map(TokenSequence.from_encoding, encodings), strict=True))
        return [
            EmbeddingItem(
                index,
                tuple(sequences[text] for text in example.texts),
                target(example, self.metadata),
                num_positives=len(example.positives),
                positive_keys=frozenset(sequence_key(sequences[text]) for text in example.positives),
            )
            for index, example in enumerate(examples)
        ]


def sequence_key(sequence: TokenSequence) -> bytes:
    """Return a key of a sequence; equal sequences have equal embeddings."""
    return sequence.ids.tobytes()


class EmbeddingModel(TaskModel):
    """Pooled hidden states without a head."""

    inherited_heads = ()
    supports_distillation = False

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: EmbedSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self._format: DataFormat = metadata["data_format"]

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """Return no heads."""
        return {}

    @property
    def _embedding_config(self) -> SentenceEmbeddingConfig:
        settings = self.settings
        max_length = min(self.config.max_length, settings.max_length or self.config.max_length)
        return SentenceEmbeddingConfig(
            settings.pooling or "mean", settings.normalize is not False, max_length
        )

    def collate(self, items: Sequence[Item], epoch: int = 0, first: int = 0) -> TaskBatch:
        """Pack for each item its query and the positive and the negative of the epoch."""
        selected = [item.in_epoch(epoch) for item in items if isinstance(item, EmbeddingItem)]
        return super().collate(selected, epoch, first)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the sequences to compare; each item has a query, a positive, and perhaps a negative.

        `queries` [B] and `others` [C] are indices of sequences, where positives precede negatives. `targets` [B]
        are cosines. `excluded` [B, C], for retrieval, is True for other passages that answer a query.
        """
        starts = np.cumsum([0, *(len(item.sequences) for item in items)])[:-1].tolist()
        negatives = [start + 2 for start, item in zip(starts, items, strict=True) if len(item.sequences) > 2]
        tensors = {
            "queries": torch.tensor(starts),
            "others": torch.tensor([*(start + 1 for start in starts), *negatives]),
            "targets": torch.tensor([float(item.target or 0) for item in items]),
        }
        if self._format == "retrieval":
            tensors["excluded"] = torch.from_numpy(excluded_passages(items))
        return tensors, {"task": len(items)}

    def embeddings(self, encoder: Encoder, packed: Packed) -> Tensor:
        """Return the embeddings as a user gets them, fp32 [B, H]."""
        config = self._embedding_config
        embeddings = pool(encoder, packed, config.pooling)
        return F.normalize(embeddings, dim=-1) if config.normalize else embeddings

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the sum over the items of the loss that the settings choose."""
        tensors, settings = batch.tensors, self.settings
        embeddings = F.normalize(self.embeddings(encoder, batch.packed), dim=-1)
        queries, others = embeddings[tensors["queries"]], embeddings[tensors["others"]]
        if self._format == "retrieval":
            loss, num_correct = in_batch_loss(settings.scale * queries @ others.T, tensors["excluded"])
            return Loss({"task": loss}, batch.counts, {"task": num_correct})
        cosines, targets = (queries * others).sum(-1), tensors["targets"]
        if self._format == "labeled":
            loss = contrastive_loss(cosines, targets, settings.margin)
        elif settings.loss == "cosent":
            loss = cosent_loss(cosines, targets, settings.scale)
        else:
            loss = F.mse_loss(cosines, targets, reduction="sum")
        return Loss({"task": loss}, batch.counts)

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the embeddings of the sequences of each item, [sequences, H]."""
        return torch.split(self.embeddings(encoder, batch.packed), list(batch.sizes))

    def run(self, encoder: Encoder, items: Sequence[Item], context: ComputeContext) -> Outputs:
        """Return the outputs of all items; each sequence is encoded once, however many items have it."""
        unique: dict[bytes, Item] = {}
        for item in items:
            for sequence in item.sequences:
                unique.setdefault(sequence_key(sequence), Item(len(unique), (sequence,)))
        reader = context.autocast_encoder(encoder)
        outputs = run_batched(
            list(unique.values()), _pack_single, lambda batch: self.outputs(reader, batch), context
        )
        embeddings = torch.cat(outputs) if outputs else torch.empty(0, self.config.hidden_size)
        return Outputs(
            [embeddings[[unique[sequence_key(s)].example for s in item.sequences]] for item in items], {}
        )

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the encoder, and the files of sentence-transformers."""
        files = sentence_transformers_files(self.config, self._embedding_config)
        return {MODEL: ModelParts(self.config, {"encoder": encoder}, files=files)}


def excluded_passages(items: Sequence[Item]) -> NDArray[np.bool_]:
    """Return which passages are no negatives of a query, because they answer it or an equal query.

    Returns:
        Booleans [B, C] with columns as in `EmbeddingModel.tensors`; False for a query's own positive.
    """
    keys = [[sequence_key(sequence) for sequence in item.sequences] for item in items]
    passages = [texts[1] for texts in keys] + [texts[2] for texts in keys if len(texts) > 2]
    positives: dict[bytes, set[bytes]] = defaultdict(set)
    for (query, *_), item in zip(keys, items, strict=True):
        positives[query] |= item.positive_keys if isinstance(item, EmbeddingItem) else frozenset()
    excluded = np.array([[passage in positives[query] for passage in passages] for query, *_ in keys])
    np.fill_diagonal(excluded, False)
    return excluded


def _pack_single(items: Sequence[Item]) -> TaskBatch:
    return TaskBatch(pack(items), (1,) * len(items), {}, {})


def contrastive_loss(cosines: Tensor, same: Tensor, margin: float) -> Tensor:
    """Return the contrastive loss of pairs (Hadsell, Chopra and LeCun 2006, equation 4).

    It is d²/2 for pairs that match (1) and max(0, margin - d)²/2 for others (0), where d = 1 - cosine.
    """
    distances = 1 - cosines
    return (same * distances.square() + (1 - same) * F.relu(margin - distances).square()).sum() / 2


def cosent_loss(cosines: Tensor, targets: Tensor, scale: float) -> Tensor:
    """Return the CoSENT loss (Su 2022), which depends on the order of the scores only.

    It is B times log(1 + sum of exp(scale · (cosine of j - cosine of i))), over all i, j where i has the higher
    score.
    """
    differences = scale * (cosines[None, :] - cosines[:, None])  # [i, j]
    ordered = differences.masked_fill(targets[:, None] <= targets[None, :], -torch.inf)
    return len(cosines) * torch.cat([ordered.new_zeros(1), ordered.flatten()]).logsumexp(0)


def in_batch_loss(products: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropies of choosing passage i for query i, summed, and the number of correct queries.

    Henderson et al. 2017; van den Oord et al. 2018.

    Args:
        products: Scaled similarities [B, C].
        excluded: Booleans [B, C], True for passages to ignore; never for passage i of query i.
    """
    logits = products.masked_fill(excluded, -torch.inf)
    targets = torch.arange(len(logits), device=logits.device)
    num_correct = (logits.detach().argmax(1) == targets).sum()
    return F.cross_entropy(logits, targets, reduction="sum"), num_correct


@dataclass
class EmbeddingPrediction(Prediction):
    """The embeddings of an example.

    Attributes:
        embeddings: The embeddings of all texts of the example, float32 [texts, H]; not in the JSON output.
    """

    embeddings: NDArray[np.float32] = field(kw_only=True, compare=False, repr=False, metadata=INTERNAL)


@dataclass
class TextEmbedding(EmbeddingPrediction):
    """The embedding of a single text.

    Attributes:
        vector: The embedding.
    """

    vector: list[float]


@dataclass
class PairSimilarity(EmbeddingPrediction):
    """The similarity of a pair of texts.

    Attributes:
        cosine: The cosine of the embeddings.
    """

    cosine: float


@dataclass
class PairMatch(PairSimilarity):
    """The decision whether two texts match.

    Attributes:
        same: True if the cosine exceeds the threshold.
    """

    same: bool


@dataclass
class QuerySimilarities(EmbeddingPrediction):
    """The similarities of a query and its passages.

    Attributes:
        cosines: The cosine for each positive, then for each negative.
    """

    cosines: list[float]


class EmbeddingDecoder(Decoder):
    """Compare embeddings. The state has the `threshold` of labeled pairs."""

    @property
    def threshold(self) -> float:
        """The cosine above which labeled pairs match."""
        return float(self.state.get("threshold", 0.5))

    def target(self, output: Tensor, item: Item, name: str | None) -> Target:
        """Return the cosine of the first two texts."""
        if len(output) < 2:
            message, hint = (
                "a single vector has no number to explain",
                "give two texts, whose cosine is explained",
            )
            raise InputError("second_text_missing", message, hint=hint)
        find_label(["cosine"], name or "cosine")
        return Target("cosine", lambda output: torch.cosine_similarity(output[0], output[1], dim=0))

    def calibrate(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[EmbeddingExample]
    ) -> None:
        """Choose the threshold of labeled pairs with the best accuracy."""
        if self.metadata["data_format"] == "labeled":
            cosines = np.array([first_cosine(p) for p in self.decode(outputs, items, examples)])
            self.state["threshold"] = best_threshold(cosines, np.array([item.target == 1 for item in items]))

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[EmbeddingExample]
    ) -> list[EmbeddingPrediction]:
        """Return the cosine of each pair, the cosines of each query, and the vectors of single texts."""
        predictions: list[EmbeddingPrediction] = []
        for output, item in zip(outputs.per_item, items, strict=True):
            embeddings = output.numpy()
            cosines = _cosines(embeddings[:1], embeddings[1:]).tolist()
            common: dict[str, Any] = {
                "tokens": sum(sequence.tokens for sequence in item.sequences),
                "tokens_read": sum(sequence.tokens_read for sequence in item.sequences),
                "embeddings": embeddings,
            }
            if not cosines:
                predictions.append(TextEmbedding(embeddings[0].tolist(), **common))
            elif len(cosines) > 1:
                predictions.append(QuerySimilarities(cosines, **common))
            elif self.metadata["data_format"] == "labeled":
                predictions.append(PairMatch(cosines[0], cosines[0] > self.threshold, **common))
            else:
                predictions.append(PairSimilarity(cosines[0], **common))
        return predictions

    def ensemble_output(self, output: Tensor) -> Tensor:
        """Return embeddings of unit length."""
        return F.normalize(output, dim=-1)

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Concatenate the embeddings, so that their cosine is the mean of the models' cosines."""
        return torch.cat(list(outputs), dim=-1)


def first_cosine(prediction: EmbeddingPrediction) -> float:
    """Return the cosine of a pair, or of a query and its first passage."""
    if isinstance(prediction, QuerySimilarities):
        return prediction.cosines[0]
    assert isinstance(prediction, PairSimilarity)
    return prediction.cosine


def best_threshold(cosines: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """Return the threshold of cosines that separates matching pairs from others with the highest accuracy.

    It is half way between two cosines, and the lowest of equally good ones; 1 or -1 if all pairs should get one
    answer.
    """
    order = np.argsort(cosines, kind="stable")
    values, matches = cosines[order], same[order]
    correct_below = np.concatenate([[0], np.cumsum(~matches)])
    correct_above = np.concatenate([np.cumsum(matches[::-1])[::-1], [0]])
    splits = np.concatenate([[True], np.diff(values) > 0, [True]])  # not between equal cosines
    i = int(np.where(splits, correct_below + correct_above, -1).argmax())
    if i in (0, len(values)):
        return 1.0 if i else -1.0
    return float((values[i - 1] + values[i]) / 2)


def _cosines(query: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosines of a vector [1, H] and others [n, H], as [n]."""
    a, b = query.astype(np.float64), others.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: NDArray[np.float64] = (a * b).sum(axis=1) / np.maximum(norms, 1e-12)
    return cosines
