"""Sizes, presets and the parameter sum."""

from __future__ import annotations

import pytest

from bertsmith.errors import InputError
from bertsmith.models.config import PRESETS, ModelConfig, count_parameters, preset
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ClassHead, MaskedHead, PairHead, Pooler

# spec 2.8: embeddings, one layer, encoder without pooler, with pooler, with pre-training heads
PUBLISHED = {
    "bert-tiny-uncased": (3_972_864, 198_272, 4_369_408, 4_385_920, 4_433_468),
    "bert-mini-uncased": (7_945_728, 789_760, 11_104_768, 11_170_560, 11_267_900),
    "bert-small-uncased": (15_891_456, 3_152_384, 28_500_992, 28_763_648, 29_058_876),
    "bert-medium-uncased": (15_891_456, 3_152_384, 41_110_528, 41_373_184, 41_668_412),
    "bert-base-uncased": (23_837_184, 7_087_872, 108_891_648, 109_482_240, 110_106_428),
    "bert-large-uncased": (31_782_912, 12_596_224, 334_092_288, 335_141_888, 336_226_108),
    "bert-base-cased": (22_665_216, 7_087_872, 107_719_680, 108_310_272, 108_932_934),
    "bert-large-cased": (30_220_288, 12_596_224, 332_529_664, 333_579_264, 334_661_958),
    "bert-base-chinese": (16_622_592, 7_087_872, 101_677_056, 102_267_648, 102_882_442),
}


def total(config: ModelConfig, heads: tuple[str, ...], labels: int = 2) -> int:
    return sum(term.size for term in count_parameters(config, heads, labels))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_sums_are_the_published_ones(name: str) -> None:
    config = preset(name)
    terms = count_parameters(config, ())
    embeddings = sum(t.size for t in terms if "embedding" in t.term)
    layer = sum(t.size for t in terms if t.term.startswith("layer 0 "))
    sums = (total(config, ()), total(config, ("pooler",)), total(config, ("pooler", "masked", "pair")))
    assert (embeddings, layer, *sums) == PUBLISHED[name]


def test_classifier_on_base_is_the_published_sum() -> None:
    config = preset("bert-base-uncased")
    assert total(config, ("pooler", "classifier"), 2) == 109_483_778
    assert total(config, ("pooler", "classifier"), 1) == 109_483_009


@pytest.mark.parametrize("name", ["bert-tiny-uncased", "bert-mini-cased"])
def test_modules_hold_exactly_the_counted_numbers(name: str) -> None:
    config = preset(name, max_position_embeddings=100, type_vocab_size=3)
    encoder = Encoder(config)
    g = encoder.generator
    modules = {
        "pooler": Pooler(config, g),
        "masked": MaskedHead(config, g),
        "pair": PairHead(config, g),
        "classifier": ClassHead(config, g, labels=7),
    }
    for heads in [(), ("pooler",), ("masked",), tuple(modules)]:
        real = sum(p.numel() for m in (encoder, *map(modules.get, heads)) for p in m.parameters())
        assert real == total(config, heads, labels=7)


def test_presets_name_each_published_size_and_case() -> None:
    sizes = ("tiny", "mini", "small", "medium", "base", "large")
    expected = {f"bert-{s}-{c}" for s in sizes for c in ("uncased", "cased")}
    assert set(PRESETS) == expected | {"bert-base-chinese"}
    assert preset("bert-base-uncased") == ModelConfig()
    assert preset("bert-mini-cased", hidden_dropout_prob=0.0).hidden_dropout_prob == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 7}, "hidden_size 256 cannot be shared out evenly"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"hidden_size": 16_384, "vocab_size": 1_000_000}, "parameters; the limit is"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"pad_token_id": 30_522}, "pad_token_id 30522 is outside"),
        ({"hidden_act": "eval"}, "hidden_act"),
        ({"hiden_size": 64}, "did you mean 'hidden_size'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        preset("bert-mini-uncased", **changes)
    assert said in str(caught.value)


def test_unknown_preset_names_the_near_ones() -> None:
    with pytest.raises(InputError, match="bert-mini-uncased"):
        preset("bert-mini-uncasd")
    with pytest.raises(InputError, match="known presets"):
        preset("zzz")
