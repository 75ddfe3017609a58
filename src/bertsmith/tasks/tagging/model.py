"""The model of a tagger: a linear layer on each word's first token, and optionally a CRF over the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.loss import Loss, classification_loss, distillation_kl
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import ChainScores, Crf, TokenClassificationHead, log_partitions, path_scores
from bertsmith.tasks.base import TaskModel
from bertsmith.tasks.batching import Item, TaskBatch
from bertsmith.tasks.tagging.encode import TagItem, contiguous_runs
from bertsmith.tasks.tagging.tag_map import TagMap


class TagModel(TaskModel):
    """Hugging Face's head for token classification, with cross-entropy or the likelihood of a CRF as loss."""

    inherited_heads = ()
    outputs_per_token = True
    legal_start: Tensor
    legal_transitions: Tensor
    legal_end: Tensor

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Mapping[str, Any], settings: Any
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        tag_map = TagMap(metadata)
        self.head = TokenClassificationHead(config, generator, len(tag_map.labels))
        self.crf = Crf(len(tag_map.labels)) if metadata.get("decoder") == "crf" else None
        for name, scores in tag_map.legal_scores()._asdict().items():
            self.register_buffer(f"legal_{name}", scores, persistent=False)

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """Return the classifier, and the CRF if there is one."""
        return {**self.head.parts, **({} if self.crf is None else {"crf": self.crf})}

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `token_indices` of the words' first tokens in the batch, and `tags`, their ids, long [M].

        With a CRF there are also the tensors of `contiguous_runs`.
        """
        if any(item.target is None for item in items):
            return {}, {}
        token_indices: list[int] = []
        start = 0
        for item in items:
            assert isinstance(item, TagItem)
            token_indices += [start + index for index in item.token_indices]
            start += item.size
        tags = [tag for item in items for tag in item.target]
        tensors = {"token_indices": torch.tensor(token_indices), "tags": torch.tensor(tags)}
        return tensors | (contiguous_runs(items) if self.crf is not None else {}), {"task": len(tags)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the cross-entropy summed over words; with a CRF minus the log-likelihood of each run of words.

        A word counts as correct if its logit for its own tag is the largest.
        """
        tags = batch.tensors["tags"]
        logits = self.head(self.features(encoder, batch.packed)[batch.tensors["token_indices"]]).float()
        if self.crf is None:
            return classification_loss(logits, tags, batch.counts)
        num_correct = (logits.detach().argmax(-1) == tags).sum()
        return Loss({"task": self._path_loss(self.crf, logits, batch)}, batch.counts, {"task": num_correct})

    def _path_loss(self, crf: Crf, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return minus the log-likelihood of the tags of each run of words, summed."""
        tensors, chain = batch.tensors, self._chain(crf)
        # Any label may begin or end a run inside a sentence.
        start, end = chain.start * tensors["begins"][:, None], chain.end * tensors["ends"][:, None]
        chain = ChainScores(start, chain.transitions, end)
        cells, lengths = tensors["cells"], tensors["lengths"]
        emissions = logits[cells]
        reference_scores = path_scores(emissions, tensors["tags"][cells], lengths, chain)
        return (log_partitions(emissions, lengths, chain) - reference_scores).sum()

    def _chain(self, crf: Crf) -> ChainScores:
        """Return the learned scores of transitions, without those that the scheme forbids."""
        return crf.add_to(ChainScores(self.legal_start, self.legal_transitions, self.legal_end))

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the logits [tokens, labels] of each window."""
        logits = self.head(self.features(encoder, batch.packed)).float()
        return torch.split(logits, batch.packed.lengths.tolist())

    def shared_outputs(self) -> dict[str, Tensor]:
        """Return the scores of transitions if there is a CRF."""
        return {} if self.crf is None else self._chain(self.crf)._asdict()

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence of the words' logits, which with a CRF are its emissions."""
        words = batch.tensors["token_indices"]
        return distillation_kl(torch.cat(list(outputs))[words], torch.cat(list(targets))[words], temperature)
