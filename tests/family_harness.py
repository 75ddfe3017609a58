"""Compare each model family with its transformers reference: outputs, losses, and gradients.

A family adds its sizes to `CASES`; the reference's classes follow from the family's table of architectures.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.artifacts.config_schema import config_to_hf
from bertsmith.artifacts.folder import ModelFolder
from bertsmith.artifacts.weights import to_hf_names
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import Family, build_encoder, get_family, preset
from bertsmith.models.pretraining_heads import MaskedLMHead, Pooler, ReplacedTokenHead, SentencePairHead
from bertsmith.models.task_heads import (
    Crf,
    MultipleChoiceHead,
    SequenceClassificationHead,
    SpanHead,
    TokenClassificationHead,
)
from bertsmith.packed import Packed

LABELS = 3
CHOICES = 2  # per question
SMALL = {
    "vocab_size": 97,
    "max_position_embeddings": 40,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 50,
    "initializer_range": 0.15,
}
UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}


@dataclass(frozen=True)
class Case:
    """A model family's preset and the sizes to change in it."""

    preset: str
    sizes: dict[str, Any]


CASES = {
    "bert": Case("bert-base-uncased", {"type_vocab_size": 3}),
    "bert, untied decoder": Case("bert-base-uncased", {"tie_word_embeddings": False}),
    "roberta": Case("roberta-base", {}),
    "roberta, untied decoder": Case("roberta-base", {"tie_word_embeddings": False}),
    "roberta, relu, another pad": Case("roberta-base", {"pad_token_id": 5, "hidden_act": "relu"}),
    "albert": Case("albert-base-v2", {"embedding_size": 10, "num_hidden_layers": 3}),
    "albert v1, E = H": Case("albert-base-v1", {"embedding_size": 24}),
    "albert, no sharing": Case("albert-base-v2", {"embedding_size": 10, "share": "none"}),
    "albert, two groups": Case(
        "albert-base-v2", {"embedding_size": 10, "num_hidden_layers": 5, "share_groups": 2}
    ),
    "albert, untied decoder": Case("albert-base-v2", {"embedding_size": 10, "tie_word_embeddings": False}),
    "distilbert": Case("distilbert-base-uncased", {}),
    "distilbert, untied decoder": Case("distilbert-base-uncased", {"tie_word_embeddings": False}),
    "electra": Case("electra-small-discriminator", {"embedding_size": 10}),
    "electra, untied decoder": Case(
        "electra-small-discriminator", {"embedding_size": 10, "tie_word_embeddings": False}
    ),
    "electra, E = H, relu": Case("electra-base-discriminator", {"hidden_act": "relu"}),
}


def config_of(case: str, **changes: Any) -> ModelConfig:
    return preset(CASES[case].preset, **{**SMALL, **UNDROPPED, **CASES[case].sizes, **changes})


WITH_OURS = [
    pytest.param(
        case,
        parts,
        id=f"{case}: {name}{'' if len(parts) > 1 else ' without pooler'}{', crf' * ('crf' in parts)}",
    )
    for case in CASES
    for parts, name in get_family(config_of(case).model_type).architectures.items()
]
KINDS = [case for case in WITH_OURS if "crf" not in case.values[1]]  # the reference has no CRF


class Ours(nn.Module):
    """An encoder with heads, and the losses that the reference has for them."""

    def __init__(self, config: ModelConfig, parts: frozenset[str], encoder: Encoder) -> None:
        super().__init__()
        generator = encoder.generator
        self.encoder, self.kinds = encoder, parts
        self.heads = nn.ModuleDict()
        if "masked" in parts:
            self.heads["masked"] = MaskedLMHead(config, generator)
        if "classifier" in parts:
            self.heads["sentence"] = SequenceClassificationHead(config, generator, LABELS)
        elif "chooser" in parts:
            self.heads["choices"] = MultipleChoiceHead(config, generator)
        elif "pooler" in parts:
            self.heads["pooler"] = Pooler(config, generator)
        if "pair" in parts:
            self.heads["pair"] = SentencePairHead(config, generator)
        if "detector" in parts:
            self.heads["detector"] = ReplacedTokenHead(config, generator)
        if "tagger" in parts:
            self.heads["tokens"] = TokenClassificationHead(config, generator, LABELS)
        if "span" in parts:
            self.heads["spans"] = SpanHead(config, generator)
        if "crf" in parts:
            self.heads["crf"] = Crf(LABELS)

    @property
    def parts(self) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"encoder": self.encoder}
        for name, head in self.heads.items():
            modules |= getattr(head, "parts", {name: head})
        return modules

    def forward(self, packed: Packed, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Return outputs by name, per token in packed form, and the loss."""
        hidden = self.encoder(packed)
        mask = batch["mask"].bool()
        outputs, losses = {"hidden": hidden}, []
        if "masked" in self.heads:
            rows = (batch["labels"][mask] != -100).nonzero()[:, 0]
            embedding = self.encoder.embeddings.token.weight
            outputs["masked"] = self.heads["masked"](hidden, embedding)
            labels = batch["labels"][mask][rows]
            losses.append(self.heads["masked"].loss(hidden[rows], embedding, labels)[0] / len(rows))
        if "pooler" in self.heads:
            outputs["pooler"] = self.heads["pooler"](hidden[packed.first_token_rows])
        if "pair" in self.heads:
            outputs["pair"] = self.heads["pair"](outputs["pooler"])
            losses.append(F.cross_entropy(outputs["pair"], batch["pairs"]))
        if "detector" in self.heads:
            outputs["detector"] = self.heads["detector"](hidden)
            replaced = batch["replaced"][mask].float()
            losses.append(F.binary_cross_entropy_with_logits(outputs["detector"], replaced))
        if "sentence" in self.heads:
            outputs["sentence"] = self.heads["sentence"](hidden[packed.first_token_rows])
            losses.append(F.cross_entropy(outputs["sentence"], batch["classes"]))
        if "choices" in self.heads:
            outputs["choices"] = self.heads["choices"](hidden[packed.first_token_rows]).view(-1, CHOICES)
            losses.append(F.cross_entropy(outputs["choices"], batch["chosen"]))
        if "tokens" in self.heads:
            outputs["tokens"] = self.heads["tokens"](hidden)
            losses.append(F.cross_entropy(outputs["tokens"], batch["tags"][mask]))
        if "spans" in self.heads:
            outputs["spans"] = self.heads["spans"](hidden)
            losses.append(span_loss(packed, outputs["spans"], batch))
        if not losses:  # a bare encoder has no loss: use a smooth function of its outputs
            losses.append((outputs.get("pooler", hidden) ** 2).mean() + hidden.sin().mean())
        return outputs, sum(losses, torch.zeros(()))


def span_loss(packed: Packed, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
    lowest = torch.finfo(torch.float32).min
    start, end = packed.pad(scores, lowest).unbind(-1)
    return (F.cross_entropy(start, batch["starts"]) + F.cross_entropy(end, batch["ends"])) / 2


def a_batch(
    config: ModelConfig, lengths: tuple[int, ...] = (7, 13, 1, 29)
) -> tuple[Packed, dict[str, Tensor]]:
    """Return sequences with all labels, packed, and padded on the right for the reference."""
    generator = torch.Generator().manual_seed(23)

    def randint(high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = randint(config.vocab_size - 1, mask.shape)
    ids += ids >= config.pad_token_id  # any token but padding
    segments = randint(max(1, config.type_vocab_size), mask.shape) * mask
    is_masked = (torch.rand(mask.shape, generator=generator) < 0.3) & mask
    is_masked[:, 0] = True
    tags = torch.where(mask, randint(LABELS, mask.shape), -100)
    batch = {
        "ids": torch.where(mask, ids, config.pad_token_id),
        "mask": mask.long(),
        "segments": segments,
        "labels": torch.where(is_masked, randint(config.vocab_size, mask.shape), -100),
        "pairs": randint(2, (len(lengths),)),
        "classes": randint(LABELS, (len(lengths),)),
        "chosen": randint(CHOICES, (len(lengths) // CHOICES,)),
        "tags": tags,
        "replaced": randint(2, mask.shape),
        "starts": torch.tensor([n // 3 for n in lengths]),
        "ends": torch.tensor([n - 1 for n in lengths]),
    }
    rows = [range(n) for n in lengths]
    packed = Packed.from_lists(
        [batch["ids"][i, list(row)].tolist() for i, row in enumerate(rows)],
        [segments[i, list(row)].tolist() for i, row in enumerate(rows)],
    )
    return packed, batch


def transformers() -> Any:
    library = pytest.importorskip("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


def reference_config(config: ModelConfig) -> Any:
    model_family = get_family(config.model_type)
    values = {"num_labels": LABELS, "attn_implementation": "eager", **config_to_hf(config)}
    values.pop("model_type")
    return getattr(transformers(), f"{model_family.class_prefix}Config")(**values)


def pooling(model_family: Family, parts: frozenset[str]) -> dict[str, bool]:
    """Return the pooler argument of the reference's bare class, in families that have a pooler."""
    has_pooler = frozenset({"encoder", "pooler"}) in model_family.architectures
    return {"add_pooling_layer": "pooler" in parts} if has_pooler and parts <= {"encoder", "pooler"} else {}


def reference(config: ModelConfig, parts: frozenset[str]) -> nn.Module:
    """Return the reference's model with these parts and random weights, norms and biases included."""
    model_family = get_family(config.model_type)
    hf_config = reference_config(config)
    if {"pair", "span"} & parts:
        hf_config.num_labels = 2  # the reference requires it for these heads
    torch.manual_seed(3)
    model = getattr(transformers(), model_family.architectures[parts])(
        hf_config, **pooling(model_family, parts)
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape) * 0.1)
    return model


def told_segments(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the segment ids as arguments of the reference, if it takes any."""
    takes_segments = "token_type_ids" in inspect.signature(model.forward).parameters
    return {"token_type_ids": batch["segments"]} if takes_segments else {}


def asked(
    model: nn.Module, parts: frozenset[str], batch: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the reference's outputs, per token in packed form, and its loss."""
    call = {"input_ids": batch["ids"], "attention_mask": batch["mask"]} | told_segments(model, batch)
    if "masked" in parts and "pair" in parts:
        label_name = "sentence_order_label" if "Albert" in type(model).__name__ else "next_sentence_label"
        call |= {"labels": batch["labels"], label_name: batch["pairs"]}
    elif "masked" in parts:
        call["labels"] = batch["labels"]
    elif "pair" in parts:
        call["labels"] = batch["pairs"]
    elif "detector" in parts:
        call["labels"] = batch["replaced"]
    elif "classifier" in parts:
        call["labels"] = batch["classes"]
    elif "chooser" in parts:
        call = {name: tensor.view(-1, CHOICES, tensor.shape[1]) for name, tensor in call.items()}
        call["labels"] = batch["chosen"]
    elif "tagger" in parts:
        call["labels"] = batch["tags"]
    elif "span" in parts:
        call |= {"start_positions": batch["starts"], "end_positions": batch["ends"]}
    out = model(**call, output_hidden_states=True)
    mask = batch["mask"].bool()
    outputs = {"hidden": out.hidden_states[-1][mask]}
    if "masked" in parts:
        outputs["masked"] = (out.prediction_logits if "pair" in parts else out.logits)[mask]
    if "pair" in parts:
        logits = [out.get(name) for name in ("seq_relationship_logits", "sop_logits", "logits")]
        outputs["pair"] = next(x for x in logits if x is not None)
    elif "detector" in parts:
        outputs["detector"] = out.logits[mask]
    elif "classifier" in parts:
        outputs["sentence"] = out.logits
    elif "chooser" in parts:
        outputs["choices"] = out.logits
    elif "pooler" in parts:
        outputs["pooler"] = out.pooler_output
    if "tagger" in parts:
        outputs["tokens"] = out.logits[mask]
    if "span" in parts:
        outputs["spans"] = torch.stack([out.start_logits, out.end_logits], -1)[mask]
    if out.get("loss") is not None:
        return outputs, out.loss
    hidden = outputs["hidden"]
    return outputs, (outputs.get("pooler", hidden) ** 2).mean() + hidden.sin().mean()


class Compared(NamedTuple):
    """A tensor of both models; `what` is "output", "loss", or "gradient"."""

    what: str
    name: str
    ours: Tensor
    theirs: Tensor


def compared(
    ours: Ours, config: ModelConfig, other: nn.Module, parts: frozenset[str], *, train: bool
) -> Iterator[Compared]:
    """Yield outputs, loss, and the gradient of every parameter of both models."""
    # Padding is among the classes of the reference's span loss, so sequences of equal length are compared.
    packed, batch = a_batch(config, (9, 9, 9)) if "span" in parts else a_batch(config)
    ours.train(train)
    other.train(train)
    our_outputs, our_loss = ours(packed, batch)
    their_outputs, their_loss = asked(other, parts, batch)
    assert their_outputs.keys() <= our_outputs.keys()
    for name, output in their_outputs.items():
        yield Compared("output", name, our_outputs[name], output)
    yield Compared("loss", "loss", our_loss, their_loss)
    for model in (ours, other):
        model.zero_grad()
    our_loss.backward()
    their_loss.backward()
    model_family = get_family(config.model_type)
    bare = model_family.architectures[parts] == f"{model_family.class_prefix}Model"
    weights = {
        f"{part}.{name}": torch.zeros_like(weight) if weight.grad is None else weight.grad
        for part, module in ours.parts.items()
        for name, weight in module.named_parameters()
    }
    parameters = dict(other.named_parameters())
    names = model_family.names(config)
    grads = to_hf_names(weights, names, is_base_model=bare)
    assert grads.keys() == parameters.keys()
    for name in names.unused.keys() & grads.keys():
        assert parameters[name].grad is None
        del grads[name]
    for name, grad in grads.items():
        their_grad = parameters[name].grad
        yield Compared("gradient", name, grad, torch.zeros_like(grad) if their_grad is None else their_grad)
    assert any(float(grad.abs().max()) > 1e-3 for grad in grads.values())


def assert_equal(
    ours: Ours, config: ModelConfig, other: nn.Module, parts: frozenset[str], *, train: bool
) -> None:
    """Assert that outputs, loss, and gradients are equal at 1e-5."""
    for pair in compared(ours, config, other, parts, train=train):
        relative = 0.0 if pair.what == "loss" else 1e-5
        torch.testing.assert_close(
            pair.ours, pair.theirs, atol=1e-5, rtol=relative, msg=lambda m, n=pair.name: f"{n}: {m}"
        )


def opened_here(folder: ModelFolder, config: ModelConfig, parts: frozenset[str]) -> Ours:
    """Load the encoder and heads of a model folder."""
    ours = Ours(config, parts, folder.encoder())
    for part, module in ours.parts.items():
        folder.load_into(part, module)
    return ours


def opened_there(
    folder: Path, config: ModelConfig, parts: frozenset[str]
) -> tuple[nn.Module, dict[str, Any]]:
    """Load the reference's model of a folder, with its report of missing and unexpected tensors."""
    model_family = get_family(config.model_type)
    model_class = getattr(transformers(), model_family.architectures[parts])
    loaded: tuple[nn.Module, dict[str, Any]] = model_class.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **pooling(model_family, parts)
    )
    return loaded


def ours_at_random(config: ModelConfig, parts: frozenset[str]) -> Ours:
    """Return a model with random weights; biases and norms differ from 0 and 1, so that an exchange shows."""
    generator = torch.Generator().manual_seed(11)
    ours = Ours(config, parts, build_encoder(config, generator))
    with torch.no_grad():
        for weight in ours.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return ours
