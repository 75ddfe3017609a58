"""Families: their switches, classes, initial weights, and device."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import FAMILIES, build_encoder, get_family, preset, presets
from bertsmith.models.pretraining_heads import SentencePairHead
from bertsmith.models.task_heads import SequenceClassificationHead, SpanHead, TokenClassificationHead
from bertsmith.models.weight_init import (
    init_local_attention,
    init_output_bias,
    init_sinusoidal_positions,
    sinusoidal_positions,
)
from bertsmith.packed import Packed

SMALL = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 24,
}  # fmt: skip
PRESETS = {
    "bert": "bert-tiny-cased",
    "roberta": "roberta-base",
    "albert": "albert-base-v2",
    "distilbert": "distilbert-base-cased",
    "electra": "electra-small-discriminator",
    "transformer": "transformer-base",
}


def packed(segments: tuple[int, ...] = (0, 0, 0, 0)) -> Packed:
    return Packed.from_lists([[7, 8, 9, 10], [11, 12]], [list(segments), [0, 0]])


def test_a_name_without_its_version_is_the_newest_preset() -> None:
    assert preset("albert-base") == preset("albert-base-v2") != preset("albert-base-v1")
    assert preset("albert-mini").hidden_size == 256
    with pytest.raises(InputError) as caught:
        preset("albert")
    assert caught.value.code == "unknown_preset"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_preset_is_a_model_of_its_family(name: str) -> None:
    model_family = get_family(name)
    assert model_family.model_type == name
    for preset_name in model_family.presets:
        config = preset(preset_name)
        model_family.check_config(config)
        assert (config.model_type, config.max_length) == (name, 1024 if name == "gpt2" else 512)
        assert model_family.names(config).tensors


def test_published_switches() -> None:
    """Lan et al. 2020 and their release: version 1 has exact GELU and, except for its largest model, dropout."""
    dropout = {
        name: preset(name).hidden_dropout_prob for name in presets() if "albert" in name and "-v" in name
    }
    assert {name for name, p in dropout.items() if p == 0.1} == {
        f"albert-{s}-v1" for s in ("base", "large", "xlarge")
    }
    assert {name for name, p in dropout.items() if p == 0} == {"albert-xxlarge-v1"} | {
        name for name in dropout if name.endswith("v2")
    }
    assert all(preset(n).hidden_act == ("gelu" if n.endswith("v1") else "gelu_new") for n in dropout)
    published = [n for n, sizes in presets().items() if get_family(sizes["model_type"]).is_transformer]
    assert {preset(n).head_dropout for n in published if "distilbert" not in n and "-big" not in n} == {0.1}
    assert preset("distilbert-base-cased").head_dropout == 0.2
    roberta = preset("roberta-base")
    assert (roberta.position_offset, roberta.max_position_embeddings, roberta.max_length) == (2, 514, 512)
    assert (roberta.type_vocab_size, roberta.pad_token_id, roberta.layer_norm_eps) == (1, 1, 1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("distilbert", {"type_vocab_size": 2}, "not_in_family"),
        ("electra", {"embedding_size": 16}, "redundant_size"),
        ("bert", {"share": "all"}, "not_in_family"),
        ("bert", {"embedding_size": 8}, "not_in_family"),
        ("roberta", {"first_position": "zero"}, "not_in_family"),
        ("albert", {"embedding_size": None}, "setting_required"),
    ],
)
def test_switches_of_another_family_are_refused(name: str, changes: dict[str, object], code: str) -> None:
    with pytest.raises(InputError) as caught:
        build_encoder(preset(PRESETS[name], **{**SMALL, **changes}), torch.Generator())
    assert caught.value.code == code
    assert caught.value.argument == f"model.{next(iter(changes))}"


def test_unknown_families_are_refused() -> None:
    with pytest.raises(InputError):
        build_encoder(preset("bert-tiny-cased", **SMALL, model_type="xlnet"), torch.Generator())


def test_positions_that_start_after_the_last_one_are_refused() -> None:
    with pytest.raises(InputError):
        preset("roberta-base", **SMALL, pad_token_id=30)


def test_heads_without_a_class_are_refused() -> None:
    parts = ["encoder", "pooler", "masked", "pair"]
    assert get_family("albert").architecture(parts) == "AlbertForPreTraining"
    with pytest.raises(InputError) as caught:
        get_family("roberta").architecture(parts)
    assert caught.value.code == "no_class_for_heads"


@pytest.mark.parametrize("num_segments", [0, 1])
def test_segment_ids_do_not_matter_without_several_segments(num_segments: int) -> None:
    config = preset("bert-tiny-cased", **SMALL, type_vocab_size=num_segments)
    encoder = build_encoder(config, torch.Generator()).eval()
    assert torch.equal(encoder(packed((0, 0, 1, 1))), encoder(packed()))
    encoder(packed((0, 0, 1, 1))).sum().backward()


@pytest.mark.parametrize("name", PRESETS)
def test_heads_list_their_parts_and_return_their_shapes(name: str) -> None:
    config = preset(PRESETS[name], **SMALL)
    encoder = build_encoder(config, torch.Generator().manual_seed(1)).eval()
    batch, g = packed(), encoder.generator
    hidden = encoder(batch)
    sentence, tokens, span = (
        SequenceClassificationHead(config, g, 5),
        TokenClassificationHead(config, g, 4),
        SpanHead(config, g),
    )
    assert sentence(hidden[batch.first_token_rows]).shape == (2, 5)
    assert tokens(hidden).shape == (6, 4)
    assert span(hidden).shape == (6, 2)
    for head in (sentence, tokens, span):
        assert get_family(name).architecture(["encoder", *head.parts])
        named = {id(p) for part in head.parts.values() for p in part.parameters()}
        assert named == {id(p) for p in head.parameters()}


@pytest.mark.parametrize("name", PRESETS)
def test_initial_losses_are_those_of_chance(name: str) -> None:
    config = preset(PRESETS[name], **{**SMALL, "vocab_size": 500})
    g = torch.Generator().manual_seed(1)
    encoder = build_encoder(config, g)
    batch = packed()
    logits = SequenceClassificationHead(config, g, 4)(encoder(batch)[batch.first_token_rows])
    assert F.cross_entropy(logits, torch.tensor([0, 3])).item() == pytest.approx(np.log(4), abs=0.1)


def test_only_albert_has_dropout_in_the_pair_head() -> None:
    probabilities = {
        name: SentencePairHead(preset(preset_name, classifier_dropout=0.3), torch.Generator()).dropout.p
        for name, preset_name in PRESETS.items()
    }
    assert {name: p for name, p in probabilities.items() if p} == {"albert": 0.3}


def test_sinusoids_start_where_positions_do() -> None:
    config = preset("roberta-base", **SMALL)
    encoder = build_encoder(config, torch.Generator().manual_seed(1))
    table = encoder.embeddings.position.weight
    before = table[:2].detach().clone()
    init_sinusoidal_positions(table, 0.02, config.position_offset)
    assert torch.equal(table[:2], before)
    torch.testing.assert_close(table[2:].detach(), sinusoidal_positions(22, 16) * 0.02 * 2**0.5)
    assert table[2].tolist() == pytest.approx([0, 0.02 * 2**0.5] * 8)
    assert table[2:].std().item() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_sinusoids_have_the_values_of_the_formula_and_rotate_by_the_distance(offset: int) -> None:
    """On the table that a model with fixed sinusoids has, to 1e-6 at every one of 512 positions."""
    config = preset(
        "bert-tiny-uncased", **{**SMALL, "position": "sinusoidal", "max_position_embeddings": 512}
    )
    table = build_encoder(config, torch.Generator()).embeddings.position.weight.detach().double().numpy()
    size = table.shape[1]
    angle = np.arange(512)[:, None] / 10_000 ** (np.arange(0, size, 2) / size)
    assert np.abs(table[:, 0::2] - np.sin(angle)).max() < 1e-6
    assert np.abs(table[:, 1::2] - np.cos(angle)).max() < 1e-6
    turn = angle[offset]  # of each pair, whatever the position
    sine, cosine = table[:-offset, 0::2], table[:-offset, 1::2]
    assert np.abs(table[offset:, 0::2] - (sine * np.cos(turn) + cosine * np.sin(turn))).max() < 1e-6
    assert np.abs(table[offset:, 1::2] - (cosine * np.cos(turn) - sine * np.sin(turn))).max() < 1e-6


def test_an_output_bias_from_counts_gives_unigram_probabilities() -> None:
    bias = torch.zeros(4)
    init_output_bias(bias, np.array([5, 0, 2, 1]))
    torch.testing.assert_close(bias.exp(), torch.tensor([6.0, 1, 3, 2]) / 12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", PRESETS)
def test_modules_are_on_the_device_of_their_generator(name: str) -> None:
    config = preset(PRESETS[name], **SMALL)
    g = torch.Generator("cuda").manual_seed(1)
    encoder, head = build_encoder(config, g), SequenceClassificationHead(config, g, 2)
    batch = packed().to("cuda")
    assert head(encoder(batch)[batch.first_token_rows]).device.type == "cuda"
    assert {p.device.type for p in [*encoder.parameters(), *head.parameters()]} == {"cuda"}


def test_default_settings_are_the_familys() -> None:
    assert (get_family("albert").default_of("share"), get_family("bert").default_of("share")) == (
        "all",
        "none",
    )
    assert get_family("roberta").default_of("pad_token_id") == 1
    assert get_family("bert").default_of("hidden_size") == ModelConfig().hidden_size


@pytest.mark.parametrize(("heads", "family"), [(2, "bert"), (4, "bert"), (8, "bert"), (4, "roberta")])
def test_heads_with_local_initialization_attend_to_neighbors(heads: int, family: str) -> None:
    """Measured on random tokens by the attention weights on the seven nearest tokens, and on their sides."""
    name = {"bert": "bert-mini-uncased", "roberta": "roberta-base"}[family]
    small = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 200}
    config = preset(
        name, **small, num_attention_heads=heads, max_position_embeddings=66, initializer_range=0.06
    )
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    init_sinusoidal_positions(
        encoder.embeddings.position.weight, config.initializer_range, config.position_offset
    )
    qkv = encoder.blocks[0].attention.qkv
    before = qkv.weight.detach().clone()
    init_local_attention(qkv.weight, heads)
    changed = (qkv.weight.detach() - before).view(3, heads, -1)
    assert not changed[2].any()  # values are unchanged
    assert not changed[:, 4:].any()
    length = 40
    ids = torch.randint(5, 200, (30, length), generator=torch.Generator().manual_seed(1))
    packed = Packed.from_padded(ids, torch.ones_like(ids), torch.zeros_like(ids))
    with torch.no_grad():
        q, k, _ = qkv(encoder.embeddings(packed)).view(30, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1).mean(0)  # [A, T, T]
    inner = torch.arange(6, length - 6)
    for head, offset in enumerate((-1, 1, -2, 2)[:heads]):
        near = {i: float(weights[head, inner, inner + i].mean()) for i in range(-5, 6)}
        assert sum(near[i] for i in range(-3, 4)) > 0.4, (head, near)  # evenly spread: 0.18
        side = sum(i * weight for i, weight in near.items())
        assert side * offset > 0, (head, near)
    for head in range(4, heads):
        assert float(weights[head, inner, inner].mean()) < 0.1


@pytest.mark.slow
def test_distilbert_takes_less_time_than_bert_at_base_size() -> None:
    """S108: half of the layers, about half of the time of the processor for a text of 128 tokens."""
    generator = torch.Generator().manual_seed(0)
    names = ("bert-base-uncased", "distilbert-base-uncased")
    encoders = [build_encoder(preset(name), generator).eval() for name in names]
    packed = Packed.from_lists([list(range(1000, 1128))], [[0] * 128])
    seconds: list[list[float]] = [[], []]
    with torch.inference_mode():
        for _ in range(4):
            for encoder, times in zip(encoders, seconds, strict=True):
                start = time.process_time()
                encoder(packed)
                times.append(time.process_time() - start)
    bert, distilbert = map(min, seconds)
    assert 0.35 < distilbert / bert < 0.75
