"""One harness for all families: a batch with all labels, our model and the reference's, and what must be equal.

A family brings its sizes only (`CASES`); the reference's classes follow from its own table of architectures.
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

from bertsmith.artifacts.config_schema import field_values
from bertsmith.artifacts.folder import ModelFolder
from bertsmith.artifacts.weight_names import to_field
from bertsmith.models.config import ModelConfig
from bertsmith.models.crf import Crf
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import Family, build_encoder, family, preset
from bertsmith.models.heads import (
    ChoiceHead,
    MaskedHead,
    PairHead,
    Pooler,
    ReplacedHead,
    SentenceHead,
    SpanHead,
    TokenHead,
)
from bertsmith.packed import Packed

LABELS = 3
CHOICES = 2  # of a question
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
    """A family's data: a preset to start from, and sizes."""

    preset: str
    sizes: dict[str, Any]


CASES = {
    "bert": Case("bert-base-uncased", {"type_vocab_size": 3}),
    "bert, decoder of its own": Case("bert-base-uncased", {"tie_word_embeddings": False}),
    "roberta": Case("roberta-base", {}),
    "roberta, decoder of its own": Case("roberta-base", {"tie_word_embeddings": False}),
    "roberta, relu, another pad": Case("roberta-base", {"pad_token_id": 5, "hidden_act": "relu"}),
    "albert": Case("albert-base-v2", {"embedding_size": 10, "num_hidden_layers": 3}),
    "albert v1, E = H": Case("albert-base-v1", {"embedding_size": 24}),
    "albert, nothing shared": Case("albert-base-v2", {"embedding_size": 10, "share": "none"}),
    "albert, two groups": Case(
        "albert-base-v2", {"embedding_size": 10, "num_hidden_layers": 5, "share_groups": 2}
    ),
    "albert, decoder of its own": Case(
        "albert-base-v2", {"embedding_size": 10, "tie_word_embeddings": False}
    ),
    "distilbert": Case("distilbert-base-uncased", {}),
    "distilbert, decoder of its own": Case("distilbert-base-uncased", {"tie_word_embeddings": False}),
    "electra": Case("electra-small-discriminator", {"embedding_size": 10}),
    "electra, decoder of its own": Case(
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
    for parts, name in family(config_of(case).model_type).architectures.items()
]
KINDS = [kind for kind in WITH_OURS if "crf" not in kind.values[1]]  # that the reference has as well


class Ours(nn.Module):
    """An encoder with the heads of some parts, and the losses that the reference has for them."""

    def __init__(self, config: ModelConfig, parts: frozenset[str], encoder: Encoder) -> None:
        super().__init__()
        g = encoder.generator
        self.encoder, self.kinds = encoder, parts
        self.heads = nn.ModuleDict()
        if "masked" in parts:
            self.heads["masked"] = MaskedHead(config, g)
        if "classifier" in parts:
            self.heads["sentence"] = SentenceHead(config, g, LABELS)
        elif "chooser" in parts:
            self.heads["choices"] = ChoiceHead(config, g)
        elif "pooler" in parts:
            self.heads["pooler"] = Pooler(config, g)
        if "pair" in parts:
            self.heads["pair"] = PairHead(config, g)
        if "detector" in parts:
            self.heads["detector"] = ReplacedHead(config, g)
        if "tagger" in parts:
            self.heads["tokens"] = TokenHead(config, g, LABELS)
        if "span" in parts:
            self.heads["spans"] = SpanHead(config, g)
        if "crf" in parts:
            self.heads["crf"] = Crf(LABELS)

    @property
    def parts(self) -> dict[str, nn.Module]:
        found: dict[str, nn.Module] = {"encoder": self.encoder}
        for name, head in self.heads.items():
            found |= getattr(head, "parts", {name: head})
        return found

    def forward(self, packed: Packed, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Outputs by name, rows of tokens packed, and the loss."""
        hidden = self.encoder(packed)
        kept = batch["mask"].bool()
        outputs, losses = {"hidden": hidden}, []
        if "masked" in self.heads:
            rows = (batch["labels"][kept] != -100).nonzero()[:, 0]
            table = self.encoder.embeddings.token.weight
            outputs["masked"] = self.heads["masked"](hidden, table)
            labels = batch["labels"][kept][rows]
            losses.append(self.heads["masked"].loss(hidden[rows], table, labels)[0] / len(rows))
        if "pooler" in self.heads:
            outputs["pooler"] = self.heads["pooler"](hidden[packed.first_rows])
        if "pair" in self.heads:
            outputs["pair"] = self.heads["pair"](outputs["pooler"])
            losses.append(F.cross_entropy(outputs["pair"], batch["pairs"]))
        if "detector" in self.heads:
            outputs["detector"] = self.heads["detector"](hidden)
            replaced = batch["replaced"][kept].float()
            losses.append(F.binary_cross_entropy_with_logits(outputs["detector"], replaced))
        if "sentence" in self.heads:
            outputs["sentence"] = self.heads["sentence"](hidden[packed.first_rows])
            losses.append(F.cross_entropy(outputs["sentence"], batch["classes"]))
        if "choices" in self.heads:
            outputs["choices"] = self.heads["choices"](hidden[packed.first_rows]).view(-1, CHOICES)
            losses.append(F.cross_entropy(outputs["choices"], batch["chosen"]))
        if "tokens" in self.heads:
            outputs["tokens"] = self.heads["tokens"](hidden)
            losses.append(F.cross_entropy(outputs["tokens"], batch["tags"][kept]))
        if "spans" in self.heads:
            outputs["spans"] = self.heads["spans"](hidden)
            losses.append(span_loss(packed, outputs["spans"], batch))
        if not losses:  # a bare encoder has no loss: any smooth function of its outputs will do
            losses.append((outputs.get("pooler", hidden) ** 2).mean() + hidden.sin().mean())
        return outputs, sum(losses, torch.zeros(()))


def span_loss(packed: Packed, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
    lowest = torch.finfo(torch.float32).min
    start, end = packed.pad(scores, lowest).unbind(-1)
    return (F.cross_entropy(start, batch["starts"]) + F.cross_entropy(end, batch["ends"])) / 2


def a_batch(
    config: ModelConfig, lengths: tuple[int, ...] = (7, 13, 1, 29)
) -> tuple[Packed, dict[str, Tensor]]:
    """Sequences of unlike lengths, packed for us and padded on the right for the reference, with all labels."""
    g = torch.Generator().manual_seed(23)

    def whole(high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, high, shape, generator=g)

    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = whole(config.vocab_size - 1, mask.shape)
    ids += ids >= config.pad_token_id  # any token but padding
    segments = whole(max(1, config.type_vocab_size), mask.shape) * mask
    chosen = (torch.rand(mask.shape, generator=g) < 0.3) & mask
    chosen[:, 0] = True
    tags = torch.where(mask, whole(LABELS, mask.shape), -100)
    batch = {
        "ids": torch.where(mask, ids, config.pad_token_id),
        "mask": mask.long(),
        "segments": segments,
        "labels": torch.where(chosen, whole(config.vocab_size, mask.shape), -100),
        "pairs": whole(2, (len(lengths),)),
        "classes": whole(LABELS, (len(lengths),)),
        "chosen": whole(CHOICES, (len(lengths) // CHOICES,)),
        "tags": tags,
        "replaced": whole(2, mask.shape),
        "starts": torch.tensor([n // 3 for n in lengths]),
        "ends": torch.tensor([n - 1 for n in lengths]),
    }
    rows = [range(n) for n in lengths]
    packed = Packed.of_lists(
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
    kind = family(config.model_type)
    values = {"num_labels": LABELS, "attn_implementation": "eager", **field_values(config)}
    values.pop("model_type")
    return getattr(transformers(), f"{kind.class_prefix}Config")(**values)


def pooling(kind: Family, parts: frozenset[str]) -> dict[str, bool]:
    """What the reference's bare class is told of its pooler, in families that have one."""
    has_one = frozenset({"encoder", "pooler"}) in kind.architectures
    return {"add_pooling_layer": "pooler" in parts} if has_one and parts <= {"encoder", "pooler"} else {}


def reference(config: ModelConfig, parts: frozenset[str]) -> nn.Module:
    """The reference's class with these parts, drawn at random, its norms and biases too."""
    kind = family(config.model_type)
    made = reference_config(config)
    if {"pair", "span"} & parts:
        made.num_labels = 2  # what the reference asks of a config for these heads
    torch.manual_seed(3)
    model = getattr(transformers(), kind.architectures[parts])(made, **pooling(kind, parts))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape) * 0.1)
    return model


def told_segments(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a class of the reference is told of segments: nothing where it has none."""
    taken = "token_type_ids" in inspect.signature(model.forward).parameters
    return {"token_type_ids": batch["segments"]} if taken else {}


def asked(
    model: nn.Module, parts: frozenset[str], batch: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """The reference's outputs, rows of tokens packed as ours are, and its own loss."""
    call = {"input_ids": batch["ids"], "attention_mask": batch["mask"]} | told_segments(model, batch)
    if "masked" in parts and "pair" in parts:
        pairs = "sentence_order_label" if "Albert" in type(model).__name__ else "next_sentence_label"
        call |= {"labels": batch["labels"], pairs: batch["pairs"]}
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
    kept = batch["mask"].bool()
    found = {"hidden": out.hidden_states[-1][kept]}
    if "masked" in parts:
        found["masked"] = (out.prediction_logits if "pair" in parts else out.logits)[kept]
    if "pair" in parts:
        logits = [out.get(name) for name in ("seq_relationship_logits", "sop_logits", "logits")]
        found["pair"] = next(x for x in logits if x is not None)
    elif "detector" in parts:
        found["detector"] = out.logits[kept]
    elif "classifier" in parts:
        found["sentence"] = out.logits
    elif "chooser" in parts:
        found["choices"] = out.logits
    elif "pooler" in parts:
        found["pooler"] = out.pooler_output
    if "tagger" in parts:
        found["tokens"] = out.logits[kept]
    if "span" in parts:
        found["spans"] = torch.stack([out.start_logits, out.end_logits], -1)[kept]
    if out.get("loss") is not None:
        return found, out.loss
    hidden = found["hidden"]
    return found, (found.get("pooler", hidden) ** 2).mean() + hidden.sin().mean()


class Compared(NamedTuple):
    """One thing that both sides have. what: "output", "loss" or "gradient"."""

    what: str
    name: str
    ours: Tensor
    theirs: Tensor


def compared(
    ours: Ours, config: ModelConfig, other: nn.Module, parts: frozenset[str], *, train: bool
) -> Iterator[Compared]:
    """Outputs, loss and the gradient of every parameter of both sides."""
    # the reference's span loss has padding among its classes, ours has not: the same where there is none
    packed, batch = a_batch(config, (9, 9, 9)) if "span" in parts else a_batch(config)
    ours.train(train)
    other.train(train)
    mine, loss = ours(packed, batch)
    theirs, their_loss = asked(other, parts, batch)
    assert theirs.keys() <= mine.keys()
    for name, wanted in theirs.items():
        yield Compared("output", name, mine[name], wanted)
    yield Compared("loss", "loss", loss, their_loss)
    for model in (ours, other):
        model.zero_grad()
    loss.backward()
    their_loss.backward()
    kind = family(config.model_type)
    bare = kind.architectures[parts] == f"{kind.class_prefix}Model"
    weights = {
        f"{part}.{name}": torch.zeros_like(weight) if weight.grad is None else weight.grad
        for part, module in ours.parts.items()
        for name, weight in module.named_parameters()
    }
    wanted = dict(other.named_parameters())
    names = kind.names(config)
    grads = to_field(weights, names, bare=bare)
    assert grads.keys() == wanted.keys()
    for name in names.idle.keys() & grads.keys():
        assert wanted[name].grad is None
        del grads[name]
    for name, grad in grads.items():
        their = wanted[name].grad
        yield Compared("gradient", name, grad, torch.zeros_like(grad) if their is None else their)
    assert any(float(grad.abs().max()) > 1e-3 for grad in grads.values())


def assert_equal(
    ours: Ours, config: ModelConfig, other: nn.Module, parts: frozenset[str], *, train: bool
) -> None:
    """All that is compared, at 1e-5."""
    for one in compared(ours, config, other, parts, train=train):
        relative = 0.0 if one.what == "loss" else 1e-5
        torch.testing.assert_close(
            one.ours, one.theirs, atol=1e-5, rtol=relative, msg=lambda m, n=one.name: f"{n}: {m}"
        )


def opened_here(folder: ModelFolder, config: ModelConfig, parts: frozenset[str]) -> Ours:
    """A folder's encoder and heads."""
    ours = Ours(config, parts, folder.encoder())
    for part, module in ours.parts.items():
        folder.fill(part, module)
    return ours


def opened_there(
    folder: Path, config: ModelConfig, parts: frozenset[str]
) -> tuple[nn.Module, dict[str, Any]]:
    """The reference's model of a folder, and what it says of missing and unexpected tensors."""
    kind = family(config.model_type)
    made = getattr(transformers(), kind.architectures[parts])
    found: tuple[nn.Module, dict[str, Any]] = made.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **pooling(kind, parts)
    )
    return found


def ours_at_random(config: ModelConfig, parts: frozenset[str]) -> Ours:
    """Drawn weights, and biases and norms away from 0 and 1, or no test would see them exchanged."""
    g = torch.Generator().manual_seed(11)
    ours = Ours(config, parts, build_encoder(config, g))
    with torch.no_grad():
        for weight in ours.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=g) * 0.1)
    return ours
