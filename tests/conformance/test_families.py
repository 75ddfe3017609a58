"""Every family by one harness: parity with the reference in both directions, folders there and back, its price.

A family brings its sizes only (`CASES`); the reference's classes follow from its own table of architectures.
"""

from __future__ import annotations

import ast
import copy
import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

import bertsmith
import tiny_run
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.artifacts.names import canonical, from_field, to_field
from bertsmith.artifacts.schema import field_values
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Block, Encoder, block_of
from bertsmith.models.family import FAMILIES, Family, build_encoder, family, preset
from bertsmith.models.heads import MaskedHead, PairHead, Pooler, SentenceHead, SpanHead, TokenHead
from bertsmith.models.layers import Dropout, use_generator
from bertsmith.models.names import LAYER, TASKS, NameTable, name_table
from bertsmith.packed import Packed
from bertsmith.workflows.pretrain import pretrain

LABELS = 3
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
    "roberta": Case("roberta-base", {}),
    "roberta, relu, another pad": Case("roberta-base", {"pad_token_id": 5, "hidden_act": "relu"}),
    "albert": Case("albert-base-v2", {"embedding_size": 10, "num_hidden_layers": 3}),
    "albert v1, E = H": Case("albert-base-v1", {"embedding_size": 24}),
    "albert, nothing shared": Case("albert-base-v2", {"embedding_size": 10, "share": "none"}),
}


def config_of(case: str, **changes: Any) -> ModelConfig:
    return preset(CASES[case].preset, **{**SMALL, **UNDROPPED, **CASES[case].sizes, **changes})


KINDS = [
    pytest.param(case, parts, id=f"{case}: {name}{'' if len(parts) > 1 else ' without pooler'}")
    for case in CASES
    for parts, name in family(config_of(case).model_type).architectures.items()
]


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
        elif "pooler" in parts:
            self.heads["pooler"] = Pooler(config, g)
        if "pair" in parts:
            self.heads["pair"] = PairHead(config, g)
        if "tagger" in parts:
            self.heads["tokens"] = TokenHead(config, g, LABELS)
        if "span" in parts:
            self.heads["spans"] = SpanHead(config, g)

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
        if "sentence" in self.heads:
            outputs["sentence"] = self.heads["sentence"](hidden, packed)
            losses.append(F.cross_entropy(outputs["sentence"], batch["classes"]))
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
        "tags": tags,
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


def reference(config: ModelConfig, parts: frozenset[str]) -> nn.Module:
    """The reference's class with these parts, drawn at random, its norms and biases too."""
    kind = family(config.model_type)
    made = reference_config(config)
    if {"pair", "span"} & parts:
        made.num_labels = 2  # what the reference asks of a config for these heads
    bare = {"add_pooling_layer": "pooler" in parts} if not parts - {"encoder", "pooler"} else {}
    torch.manual_seed(3)
    model = getattr(transformers(), kind.architectures[parts])(made, **bare)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape) * 0.1)
    return model


def asked(
    model: nn.Module, parts: frozenset[str], batch: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """The reference's outputs, rows of tokens packed as ours are, and its own loss."""
    call = {"input_ids": batch["ids"], "attention_mask": batch["mask"], "token_type_ids": batch["segments"]}
    if "masked" in parts and "pair" in parts:
        pairs = "sentence_order_label" if "Albert" in type(model).__name__ else "next_sentence_label"
        call |= {"labels": batch["labels"], pairs: batch["pairs"]}
    elif "masked" in parts:
        call["labels"] = batch["labels"]
    elif "pair" in parts:
        call["labels"] = batch["pairs"]
    elif "classifier" in parts:
        call["labels"] = batch["classes"]
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
    elif "classifier" in parts:
        found["sentence"] = out.logits
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


def assert_equal(
    ours: Ours, config: ModelConfig, other: nn.Module, parts: frozenset[str], *, train: bool
) -> None:
    """Outputs, loss and the gradient of every parameter, at 1e-5."""
    # the reference's span loss has padding among its classes, ours has not: the same where there is none
    packed, batch = a_batch(config, (9, 9, 9)) if "span" in parts else a_batch(config)
    ours.train(train)
    other.train(train)
    mine, loss = ours(packed, batch)
    theirs, their_loss = asked(other, parts, batch)
    assert theirs.keys() <= mine.keys()
    for name, wanted in theirs.items():
        torch.testing.assert_close(
            mine[name], wanted, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    torch.testing.assert_close(loss, their_loss, atol=1e-5, rtol=0)
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
    grads = to_field(weights, kind.names(config), bare=bare)
    assert grads.keys() == wanted.keys()
    for name, grad in grads.items():
        their = wanted[name].grad
        their = torch.zeros_like(grad) if their is None else their
        torch.testing.assert_close(grad, their, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert any(float(grad.abs().max()) > 1e-3 for grad in grads.values())


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize(("case", "parts"), KINDS)
def test_a_folder_of_the_reference_is_the_same_model_here(
    case: str, parts: frozenset[str], train: bool, tmp_path: Path
) -> None:
    config = config_of(case)
    other = reference(config, parts)
    other.save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    assert folder.config == config
    assert folder.architecture == type(other).__name__
    assert folder.parts == parts
    assert folder.labels == (
        [f"LABEL_{i}" for i in range(LABELS)] if {"classifier", "tagger"} & parts else None
    )
    ours = Ours(config, parts, folder.encoder())
    for part, module in ours.parts.items():
        folder.fill(part, module)
    assert_equal(ours, config, other, parts, train=train)


@pytest.mark.parametrize(("case", "parts"), KINDS)
def test_our_folder_is_the_same_model_in_the_reference(
    case: str, parts: frozenset[str], tmp_path: Path
) -> None:
    config = config_of(case)
    ours = ours_at_random(config, parts)
    labels = ["good", "bad", "ugly"] if {"classifier", "tagger"} & parts else None
    write_folder(tmp_path / "m", config, ours.parts, labels=labels)
    kind = family(config.model_type)
    made = getattr(transformers(), kind.architectures[parts])
    bare = {"add_pooling_layer": "pooler" in parts} if not parts - {"encoder", "pooler"} else {}
    other, report = made.from_pretrained(
        tmp_path / "m", output_loading_info=True, attn_implementation="eager", **bare
    )
    assert {key: list(found) for key, found in report.items() if found} == {}
    if labels:
        assert other.config.id2label == dict(enumerate(labels))
    assert_equal(ours, config, other, parts, train=False)


def ours_at_random(config: ModelConfig, parts: frozenset[str]) -> Ours:
    """Drawn weights, and biases and norms away from 0 and 1, or no test would see them exchanged."""
    g = torch.Generator().manual_seed(11)
    ours = Ours(config, parts, build_encoder(config, g))
    with torch.no_grad():
        for weight in ours.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=g) * 0.1)
    return ours


@pytest.mark.parametrize("case", CASES)
def test_config_json_is_what_the_reference_makes_of_it(case: str, tmp_path: Path) -> None:
    config = config_of(case, hidden_dropout_prob=0.2, classifier_dropout=0.3)
    write_folder(tmp_path / "m", config, {"encoder": build_encoder(config, torch.Generator())})
    loaded = transformers().AutoConfig.from_pretrained(tmp_path / "m")
    assert type(loaded).__name__ == f"{family(config.model_type).class_prefix}Config"
    written = json.loads((tmp_path / "m/config.json").read_text())
    assert all(getattr(loaded, key) == value for key, value in field_values(config).items())
    assert written.keys() == field_values(config).keys() | {"architectures"}
    assert read_folder(tmp_path / "m").config == config


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", CASES)
def test_the_padded_call_is_the_references(case: str, side: str) -> None:
    """Padding on either side, and padding ids that nobody masked."""
    config = config_of(case)
    other = reference(config, frozenset({"encoder"})).eval()
    encoder = build_encoder(config, torch.Generator()).eval()
    with torch.no_grad():
        weights = {**other.state_dict()}
        table = family(config.model_type).names(config)
        named = from_field({canonical(n, table.base): w for n, w in weights.items()}, table, "here")
    encoder.load_state_dict({name.removeprefix("encoder."): weight for name, weight in named.items()})
    _, batch = a_batch(config, (5, 31, 1, 8))
    if side == "left":
        for name in ("ids", "mask", "segments"):
            batch[name] = batch[name].flip(1)
    call = (batch["ids"], batch["mask"], batch["segments"])
    kept = batch["mask"].bool()
    with torch.no_grad():
        theirs = other(call[0], attention_mask=call[1], token_type_ids=call[2]).last_hidden_state
        torch.testing.assert_close(encoder(*call)[kept], theirs[kept], atol=1e-5, rtol=0)
        theirs = other(call[0], token_type_ids=call[2]).last_hidden_state
        torch.testing.assert_close(encoder(call[0], None, call[2]), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("case", "parts"), KINDS)
def test_names_and_weights_come_back_to_the_bit(case: str, parts: frozenset[str], tmp_path: Path) -> None:
    config = config_of(case)
    ours = ours_at_random(config, parts)
    folder = read_folder(write_folder(tmp_path / "m", config, ours.parts, record={"task": "none"}))
    assert (folder.config, folder.parts) == (config, parts)
    assert folder.architecture == family(config.model_type).architecture(parts)
    again = Ours(config, parts, folder.encoder())
    for part, module in again.parts.items():
        folder.fill(part, module)
        for name, tensor in ours.parts[part].state_dict().items():
            assert torch.equal(tensor, module.state_dict()[name]), f"{part}.{name}"
    with torch.no_grad():
        packed, batch = a_batch(config)
        assert torch.equal(ours.eval()(packed, batch)[1], again.eval()(packed, batch)[1])


@pytest.mark.parametrize("share", ["all", "attention", "feed_forward"])
def test_what_is_shared_is_one_tensor_everywhere(share: str, tmp_path: Path) -> None:
    """Saved once, updated once, its gradients summed; the reference opens the folder and answers the same."""
    config = config_of("albert", share=share)
    parts = frozenset({"encoder", "masked"})
    ours = ours_at_random(config, parts)
    state = ours.encoder.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    assert state.keys() == dict(ours.encoder.named_parameters()).keys()
    table = family("albert").names(config)
    assert {f"encoder.{name}" for name in state} == {n for n in table.tensors if n.startswith("encoder.")}

    path = write_folder(tmp_path / "m", config, ours.parts)
    again = read_folder(path)
    assert again.config == config
    assert again.encoder().state_dict().keys() == state.keys()
    made = transformers().AlbertForMaskedLM
    other, report = made.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
    assert {key: list(found) for key, found in report.items() if found} == {}
    packed, batch = a_batch(config)
    mine, loss = ours(packed, batch)
    theirs, their_loss = asked(other, parts, batch)
    torch.testing.assert_close(mine["masked"], theirs["masked"], atol=1e-5, rtol=1e-5)
    loss.backward()
    their_loss.backward()
    wanted = {name: weight.grad for name, weight in other.named_parameters()}
    for copied, first in table.repeated.items():  # the reference has copies: the sum of theirs is ours
        wanted[first] = wanted[first] + wanted[copied]
    grads = {f"encoder.{name}": weight.grad for name, weight in ours.encoder.named_parameters()}
    for name, grad in to_field(grads, table, bare=False).items():
        if name not in table.repeated:
            torch.testing.assert_close(
                grad, wanted[name], atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_a_copy_of_a_sharing_encoder_shares_its_own() -> None:
    encoder = build_encoder(config_of("albert", share="attention"), torch.Generator())
    twin = copy.deepcopy(encoder)
    packed, _ = a_batch(encoder.config)
    with torch.no_grad():
        before = encoder.eval()(packed)
        twin.blocks[0].attention.qkv.weight.zero_()
        assert torch.equal(encoder(packed), before)
        assert not torch.equal(twin.eval()(packed), before)


@pytest.mark.parametrize("case", CASES)
def test_another_generator_reaches_every_dropout(case: str) -> None:
    config = config_of(
        case, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, classifier_dropout=0.4
    )
    kind = family(config.model_type)
    ours = Ours(config, max(kind.architectures, key=len), build_encoder(config, torch.Generator()))
    tasks = nn.ModuleList(
        [ours, SentenceHead(config, torch.Generator(), 2), TokenHead(config, torch.Generator(), 2)]
    )
    fresh = torch.Generator().manual_seed(5)
    use_generator(tasks, fresh)
    drops = [module for module in tasks.modules() if isinstance(module, Dropout)]
    assert drops
    assert all(drop.generator is fresh for drop in drops)
    assert 0.4 in {drop.p for drop in drops}  # the heads' own


@pytest.mark.parametrize(
    ("name", "sentence_task", "more"),
    [
        ("bert-tiny-uncased", "nsp", ()),
        ("roberta-base", "none", ("data.instances=full_sentences",)),
        ("albert-base-v2", "sop", ("model.embedding_size=16",)),
        ("albert-base-v2", "none", ("model.embedding_size=16", "model.share=attention")),
    ],
)
def test_pre_training_needs_the_presets_name_alone(
    name: str, sentence_task: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """Trained, its checkpoint written, loaded, asked; and opened by the reference without a key too many."""
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, f"data.sentence_task={sentence_task}", "train.max_steps=4", *more]
    model = pretrain(shards, tmp_path / "run", preset=name, settings=settings)
    assert len(model.fill_mask("kaba [MASK] lode")[0]) == 5
    assert model.info()["parameters"] == sum(t.numel() for t in model.folder.weights().values())
    made = getattr(transformers(), model.folder.architecture)
    _, report = made.from_pretrained(model.model_folder, output_loading_info=True)
    assert {key: list(found) for key, found in report.items() if found} == {}


@pytest.mark.parametrize(
    ("name", "instances", "task"),
    [("roberta-base", "full_sentences", "none"), ("albert-base-v2", "segment_pair", "sop")],
)
def test_a_preset_brings_what_its_paper_is_trained_on(
    name: str, instances: str, task: str, tmp_path: Path
) -> None:
    few = [*tiny_run.SETTINGS, "model.embedding_size=16"] if "albert" in name else tiny_run.SETTINGS
    run = pretrain(
        tiny_run.make_shards(tmp_path), tmp_path / "run", preset=name, settings=[*few, "train.max_steps=2"]
    )
    kept = yaml.safe_load((run.path / "settings.yaml").read_text())
    assert (kept["data"]["instances"], kept["data"]["sentence_task"]) == (instances, task)


def test_heads_that_a_family_has_no_class_for_are_refused_before_training(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    pairs = ["data.instances=segment_pair", "data.sentence_task=nsp", "model.type_vocab_size=2"]
    with pytest.raises(InputError, match="roberta has no class with these heads: masked, pair, pooler"):
        pretrain(shards, tmp_path / "run", preset="roberta-base", settings=[*tiny_run.SETTINGS, *pairs])
    assert not (tmp_path / "run" / "checkpoints").exists()


# The price of a family: one value, made here and in no file of the package.


def _toy_block(config: ModelConfig, generator: torch.Generator) -> Block:
    """BERT's, with one norm more on what attention gives: a part that no other family has."""
    block = block_of(config, generator)
    block.attention = _Normed(block.attention, nn.LayerNorm(config.hidden_size))
    return block


class _Normed(nn.Module):
    def __init__(self, inner: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm

    def forward(self, *inputs: Any) -> Tensor:
        return self.norm(self.inner(*inputs))


def _toy_names(config: ModelConfig) -> NameTable:
    layer = {name.replace("attention.", "attention.inner.", 1): theirs for name, theirs in LAYER.items()}
    heads = {
        "masked": ("guess",),
        "masked.transform": ("guess.mix",),
        "masked.norm": ("guess.norm",),
        **TASKS,
    }
    return name_table(
        config,
        "toy",
        heads=heads,
        decoder="guess.decoder",
        layer={**layer, "attention.norm": ("attention.norm",)},
        layer_name="stack.{layer}",
    )


TOY = Family(
    model_type="toy",
    names=_toy_names,
    architectures={
        frozenset({"encoder"}): "ToyModel",
        frozenset({"encoder", "masked"}): "ToyForMaskedLM",
        frozenset({"encoder", "classifier"}): "ToyForSequenceClassification",
    },
    tokenizer="wordpiece",
    presets={"toy-tiny": {**SMALL, "type_vocab_size": 0}},
    structure={"embedding_size": None, "share": "none", "first_position": "zero"},
    keys={"hidden_size": "d_model", "num_hidden_layers": "depth"},
    fixed={"flavour": "plain"},
    encoder=partial(Encoder, block=_toy_block),
)


def _as_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def _by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    home = types.ModuleType("home_of_the_toy")
    home.TOY = TOY  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "home_of_the_toy", home)
    monkeypatch.setitem(FAMILIES, "toy", "home_of_the_toy:TOY")


@pytest.mark.parametrize("register", [_as_object, _by_name])
def test_a_family_from_elsewhere_is_trained_saved_and_loaded(
    register: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register(monkeypatch)
    config = preset("toy-tiny")
    assert config.model_type == "toy"
    parts = frozenset({"encoder", "masked"})
    ours = Ours(config, parts, build_encoder(config, torch.Generator().manual_seed(2)))
    packed, batch = a_batch(config)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        _, loss = ours(packed, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]

    path = write_folder(tmp_path / "m", config, ours.parts)
    written = json.loads((path / "config.json").read_text())
    assert (written["model_type"], written["architectures"]) == ("toy", ["ToyForMaskedLM"])
    assert (written["d_model"], written["depth"], written["flavour"]) == (24, 2, "plain")
    folder = read_folder(path)
    assert folder.config == config
    again = Ours(config, parts, folder.encoder())
    folder.fill("masked", again.heads["masked"])
    mine, theirs = ours.eval()(packed, batch)[0], again.eval()(packed, batch)[0]
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)

    (path / "config.json").write_text(json.dumps({**written, "flavour": "hot"}))
    with pytest.raises(InputError, match="flavour 'hot' cannot be read"):
        read_folder(path)
    del written["model_type"], written["architectures"]  # known by its tensors alone
    (path / "config.json").write_text(json.dumps(written))
    assert read_folder(path).architecture == "ToyForMaskedLM"


def test_without_its_line_a_family_is_unknown() -> None:
    with pytest.raises(InputError, match="'toy' is no family of models that is known here"):
        build_encoder(ModelConfig(model_type="toy"), torch.Generator())
    with pytest.raises(InputError, match="toy-tiny: there is no preset"):
        preset("toy-tiny")


@pytest.mark.parametrize("name", ["roberta", "albert"])
def test_a_family_is_named_in_its_file_and_the_table_only(name: str) -> None:
    """The price: no other line of the package's code knows it; docstrings and descriptions may speak of it."""
    rooms = ("models", "artifacts", "training", "instances", "objectives", "tasks", "workflows", "cli")
    files = [file for room in rooms for file in (Path(bertsmith.__file__).parent / room).rglob("*.py")]
    assert {file.name for file in files if _knows(file, name)} == {"family.py", f"{name}.py"}


def _knows(file: Path, name: str) -> bool:
    home = f"bertsmith.models.families.{name}"
    return any(
        (isinstance(node, ast.Constant) and node.value in (name, f"{home}:{name.upper()}"))
        or (isinstance(node, ast.Name) and node.id.lower() == name)
        or (isinstance(node, ast.ImportFrom) and node.module == home)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )
