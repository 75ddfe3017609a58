"""A tagger: a linear layer on each word's first token, optionally a CRF over the words, and the decoding of tags.

Decoding searches the best path over all words of a sentence that the scheme of the labels allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertsmith.loss import Loss, classification_loss, distillation_kl
from bertsmith.metrics.tagging import extract_entities
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import (
    ChainScores,
    Crf,
    TokenClassificationHead,
    log_partitions,
    marginals,
    path_scores,
    viterbi_decode,
)
from bertsmith.tasks.base import Decoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch, logits_from_probabilities
from bertsmith.tasks.results import OMIT_IF_NONE, Prediction
from bertsmith.tasks.tagging.data import TagMap
from bertsmith.tasks.tagging.encode import TagItem, contiguous_runs
from bertsmith.tasks.tagging.sentences import TagExample, split_as_in_training
from bertsmith.tasks.targets import Target, find_label

_NO_TOKEN_SCORE = -1e4  # the emission of all labels but the default one for a word without a token
_MAX_CELLS = 4_000_000  # sentences x words x tags that are decoded at a time


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

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return the fp32 logits [tokens, labels] of all windows."""
        logits: Tensor = self.head(self.features(encoder, batch.packed))
        return logits.float()

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the logits [tokens, labels] of each window."""
        return torch.split(self.logits(encoder, batch), batch.packed.lengths.tolist())

    def shared_outputs(self) -> dict[str, Tensor]:
        """Return the scores of transitions if there is a CRF."""
        return {} if self.crf is None else self._chain(self.crf)._asdict()

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence of the words' logits, which with a CRF are its emissions."""
        words = batch.tensors["token_indices"]
        return distillation_kl(torch.cat(list(outputs))[words], torch.cat(list(targets))[words], temperature)


@dataclass
class TagPrediction(Prediction):
    """The tags of a sentence.

    Attributes:
        words: The words.
        tags: The tag of each word, in the scheme of the training file.
        scores: The probability of the label behind each tag (in IOBES, of S-PER for a B-PER): the softmax's or
            that of a CRF; 0 for a word without a token.
        predicate: The index of the predicate whose roles the tags are.
        offsets: The characters [start, end) of each word in a running text.
        entities: The entities of the tags, if these have a scheme: `type`, `start` and `end` (word indices),
            `text`, and in a running text `start_char` and `end_char`.
        roles: The same for the roles of a predicate.
    """

    words: list[str]
    tags: list[str]
    scores: list[float]
    predicate: int | None = field(default=None, metadata=OMIT_IF_NONE)
    offsets: list[list[int]] | None = field(default=None, metadata=OMIT_IF_NONE)
    entities: list[dict[str, Any]] | None = field(default=None, metadata=OMIT_IF_NONE)
    roles: list[dict[str, Any]] | None = field(default=None, metadata=OMIT_IF_NONE)


class TagDecoder(Decoder):
    """Decodes the tags of whole sentences from the logits of their windows."""

    def __init__(self, metadata: Mapping[str, Any], settings: Any, state: Mapping[str, Any]) -> None:
        super().__init__(metadata, settings, state)
        self.tag_map = TagMap(metadata)
        self.has_crf = metadata.get("decoder") == "crf"
        self._legal = self.tag_map.legal_scores()

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TagExample]
    ) -> list[TagPrediction]:
        """Return the tags of each sentence, as many as words."""
        examples = split_as_in_training(examples, self.metadata)
        emissions, has_token = self.emissions(outputs, items, examples)
        tokens = {item.example: item.tokens for item in items if isinstance(item, TagItem)}
        paths = best_paths(emissions, self.chain(outputs), has_crf=self.has_crf)
        predictions = []
        for i, (example, (path, probabilities)) in enumerate(zip(examples, paths, strict=True)):
            tags = self.tag_map.to_tags([self.tag_map.labels[label] for label in path])
            scores = (probabilities * has_token[i]).tolist()
            predictions.append(self._prediction(example, tags, scores, tokens.get(i, 0)))
        return predictions

    def target(self, output: Tensor, item: Item, name: str | None) -> Target:
        """Return the logit of a word's label, named "3" for the predicted label of a word or "3=B-PER".

        Without a name it is the label with the highest logit besides the default label.
        """
        assert isinstance(item, TagItem)
        labels, words = self.tag_map.labels, [str(word) for word in item.words]
        logits = output[list(item.token_indices)].clone()
        if name is None:
            logits[:, self.tag_map.ids[self.metadata["default_label"]]] = -torch.inf
            position, label = divmod(int(logits.argmax()), len(labels))
        else:
            word, _, label_name = name.partition("=")
            position = find_label(words, word)
            label = find_label(labels, label_name) if label_name else int(logits[position].argmax())
        index = item.token_indices[position], label
        return Target(f"{words[position]}={labels[label]}", lambda output: output[index])

    def probabilities(self, output: Tensor) -> Tensor | None:
        """Return the probability of each label; None with a CRF, whose emissions depend on each other."""
        return None if self.has_crf else output.double().softmax(-1)

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the mean of several models' probabilities as logits; with a CRF the mean of the emissions."""
        mean = super().combine_outputs(outputs)
        return mean if self.has_crf else logits_from_probabilities(mean).float()

    def chain(self, outputs: Outputs) -> ChainScores:
        """Return the scores of transitions: those of a CRF, or those that only exclude what the scheme forbids."""
        chain = ChainScores(**outputs.shared) if self.has_crf else self._legal
        return ChainScores(*(scores.to(torch.get_default_device()) for scores in chain))

    def emissions(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TagExample]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return for each sentence the log-probabilities [words, labels], and which words have a token.

        A word without a token has the default label.

        Args:
            outputs: The logits of the windows.
            items: The windows.
            examples: The sentences, split into words as in training.
        """
        default = torch.full((len(self.tag_map.labels),), _NO_TOKEN_SCORE)
        default[self.tag_map.ids[self.metadata["default_label"]]] = 0.0
        emissions = [default.expand(len(example.words), -1).clone() for example in examples]
        has_token = [torch.zeros(len(example.words), dtype=torch.bool) for example in examples]
        for logits, item in zip(outputs.per_item, items, strict=True):
            assert isinstance(item, TagItem)
            words = list(item.words)
            emissions[item.example][words] = logits[list(item.token_indices)].log_softmax(-1)
            has_token[item.example][words] = True
        return emissions, has_token

    def _prediction(
        self, example: TagExample, tags: list[str], scores: list[float], tokens: int
    ) -> TagPrediction:
        prediction = TagPrediction(
            list(example.words), tags, scores, example.predicate, tokens=tokens, tokens_read=tokens
        )
        offsets: list[list[int]] = []
        for word in example.words if example.text is not None else ():
            start = (example.text or "").index(word, offsets[-1][1] if offsets else 0)
            offsets.append([start, start + len(word)])
        if example.text is not None:
            prediction.offsets = offsets
        if self.metadata["scheme"]:
            spans = [self._span(example, entity, offsets) for entity in extract_entities(tags)]
            prediction.entities, prediction.roles = (
                (None, spans) if self.metadata.get("roles") else (spans, None)
            )
        return prediction

    def _span(self, example: TagExample, entity: Any, offsets: list[list[int]]) -> dict[str, Any]:
        separator = "" if self.metadata.get("characters") else " "
        span = {**entity._asdict(), "text": separator.join(example.words[entity.start : entity.end])}
        if example.text is not None:
            start, end = offsets[entity.start][0], offsets[entity.end - 1][1]
            span |= {"text": example.text[start:end], "start_char": start, "end_char": end}
        return span


def best_paths(
    emissions: Sequence[Tensor], chain: ChainScores, *, has_crf: bool
) -> list[tuple[list[int], Tensor]]:
    """Return the best path of each sentence, and the probability of each of its labels.

    Args:
        emissions: The log-probabilities [words, labels] of each sentence.
        chain: The scores of transitions.
        has_crf: True if probabilities are those over all paths; otherwise they are the emissions'.
    """
    paths: list[tuple[list[int], Tensor]] = [([], torch.zeros(0)) for _ in emissions]
    non_empty = [i for i, sentence_emissions in enumerate(emissions) if len(sentence_emissions)]
    for indices, padded, lengths in padded_batches(non_empty, emissions):
        probabilities = marginals(padded, lengths, chain) if has_crf else padded.exp()
        batch_paths = viterbi_decode(padded, lengths, chain)
        for i, path, word_probabilities in zip(indices, batch_paths, probabilities, strict=True):
            paths[i] = path, word_probabilities[torch.arange(len(path)), path]
    return paths


def padded_batches(
    indices: Sequence[int], emissions: Sequence[Tensor]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield sentences of similar lengths as batches of bounded size.

    Yields:
        The indices of the sentences, their padded emissions [sentences, words, labels], and their lengths.
    """
    order = sorted(indices, key=lambda i: -len(emissions[i]))
    while order:
        longest, labels = emissions[order[0]].shape
        batch = order[: max(1, _MAX_CELLS // (labels * max(longest, labels)))]
        order = order[len(batch) :]
        lengths = torch.tensor([len(emissions[i]) for i in batch])
        yield batch, pad_sequence([emissions[i] for i in batch], batch_first=True), lengths
