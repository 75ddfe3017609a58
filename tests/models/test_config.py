"""Sizes, presets, and parameter counts."""

from __future__ import annotations

import re

import pytest
import torch

from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import get_family, preset, presets
from bertsmith.models.parameter_count import count_parameters, omitted_terms
from bertsmith.models.task_heads import PART_BUILDERS

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
    "bert-base-multilingual-cased": (92_208_384, 7_087_872, 177_262_848, 177_853_440, 178_566_653),
    "bert-base-multilingual-uncased": (81_711_360, 7_087_872, 166_765_824, 167_356_416, 168_055_961),
    "albert-base-v1": (4_005_120, 7_087_872, 11_092_992, 11_683_584, 11_813_810),
    "albert-large-v1": (4_038_144, 12_596_224, 16_634_368, 17_683_968, 17_847_474),
    "albert-xlarge-v1": (4_170_240, 50_358_272, 54_528_512, 58_724_864, 59_021_490),
    "albert-xxlarge-v1": (4_434_432, 201_379_840, 205_814_272, 222_595_584, 223_158_450),
}
PUBLISHED |= {name.replace("v1", "v2"): sums for name, sums in PUBLISHED.items() if "v1" in name}
# embeddings, one layer, encoder without pooler, with pooler; with masked head and no pooler
MASKED_ONLY = {
    "roberta-base": (39_000_576, 7_087_872, 124_055_040, 124_645_632, 124_697_433),
    "roberta-large": (52_000_768, 12_596_224, 354_310_144, 355_359_744, 355_412_057),
    "distilroberta-base": (39_000_576, 7_087_872, 81_527_808, 82_118_400, 82_170_201),
    "albert-base-v2": (4_005_120, 7_087_872, 11_092_992, 11_683_584, 11_221_680),
    "albert-large-v2": (4_038_144, 12_596_224, 16_634_368, 17_683_968, 16_795_824),
    "albert-xlarge-v2": (4_170_240, 50_358_272, 54_528_512, 58_724_864, 54_821_040),
    "albert-xxlarge-v2": (4_434_432, 201_379_840, 205_814_272, 222_595_584, 206_368_944),
}
# embeddings, one layer, encoder; with masked head; with the head for replaced tokens
NO_POOLER = {
    "distilbert-base-uncased": (23_835_648, 7_087_872, 66_362_880, 66_985_530, None),
    "distilbert-base-cased": (22_663_680, 7_087_872, 65_190_912, 65_812_036, None),
    "distilbert-base-multilingual-cased": (92_206_848, 7_087_872, 134_734_080, 135_445_755, None),
    "electra-small-discriminator": (4_005_888, 789_760, 13_483_008, None, 13_549_057),
    "electra-base-discriminator": (23_837_184, 7_087_872, 108_891_648, None, 109_483_009),
    "electra-large-discriminator": (31_782_912, 12_596_224, 334_092_288, None, 335_142_913),
    "electra-small-generator": (4_005_888, 789_760, 13_483_008, 13_546_682, None),
    "electra-base-generator": (24_034_048, 789_760, 33_511_168, 33_740_602, None),
    "electra-large-generator": (32_045_312, 789_760, 50_999_552, 51_295_290, None),
    "openai-gpt": (31_480_320, 7_087_872, 116_534_784, 116_534_784, None),
    "gpt2": (39_383_808, 7_087_872, 124_439_808, 124_439_808, None),
    "gpt2-medium": (52_511_744, 12_596_224, 354_823_168, 354_823_168, None),
    "gpt2-large": (65_639_680, 19_677_440, 774_030_080, 774_030_080, None),
    "gpt2-xl": (82_049_600, 30_740_800, 1_557_611_200, 1_557_611_200, None),
}

# Sizes of bertsmith, small enough for two cores: embeddings, one layer, encoder without pooler; by hand (spec 2.8)
SMALL_PRESETS = {
    "roberta-mini": (13_000_192, 789_760, 16_159_232),
    "roberta-small": (26_000_384, 3_152_384, 38_609_920),
    "albert-mini": (3_939_072, 789_760, 4_728_832),
    "albert-small": (3_972_096, 3_152_384, 7_124_480),
    "distilbert-mini-uncased": (7_945_216, 789_760, 9_524_736),
    "distilbert-small-uncased": (15_890_432, 3_152_384, 22_195_200),
    "electra-mini-discriminator": (4_005_888, 789_760, 7_164_928),
    "electra-mini-generator": (3_981_120, 49_984, 4_181_056),
    "nnlm-mini": (1_465_056, 24_704, 1_489_760),
    "rnn-mini": (7_813_632, 1_575_168, 10_963_968),
    "rnn-small": (15_627_264, 6_296_064, 28_219_392),
    "lstm-mini": (7_813_632, 1_623_168, 11_059_968),
    "lstm-small": (15_627_264, 6_484_224, 28_595_712),
    "elmo-mini": (7_813_632, 1_644_032, 11_101_696),
    "elmo-small": (15_627_264, 6_564_864, 28_756_992),
    "transformer-mini": (9_472_000, 789_760, 11_841_280),
    "transformer-base": (18_944_000, 3_152_384, 37_858_304),
    "transformer-big": (37_888_000, 12_596_224, 113_465_344),
    "gpt-mini": (10_493_440, 789_760, 13_652_480),
    "gpt2-mini": (13_127_936, 789_760, 16_287_488),
}
CHINESE = {
    f"bert-{size}-chinese" for size in ("tiny", "mini", "small")
}  # published sizes, not published models


def total(config: ModelConfig, heads: tuple[str, ...], labels: int = 2) -> int:
    return sum(term.size for term in count_parameters(config, heads, labels))


def parameter_counts(name: str, *heads: str) -> tuple[int, ...]:
    config = preset(name)
    terms = count_parameters(config, ())
    embeddings = sum(t.size for t in terms if "embedding" in t.name or t.name == "projection")
    layer = sum(t.size for t in terms if t.name.startswith("layer 0 "))
    return embeddings, layer, total(config, ()), total(config, ("pooler",)), total(config, heads)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert parameter_counts(name, "pooler", "masked", "pair") == PUBLISHED[name]


@pytest.mark.parametrize("name", MASKED_ONLY)
def test_parameter_counts_with_the_masked_head(name: str) -> None:
    assert parameter_counts(name, "masked") == MASKED_ONLY[name]


@pytest.mark.parametrize("name", SMALL_PRESETS)
def test_parameter_counts_of_small_presets(name: str) -> None:
    assert parameter_counts(name)[:3] == SMALL_PRESETS[name]


def test_each_preset_has_a_published_count() -> None:
    names = {re.sub("^(bert-.*)-cased", r"\1-uncased", name) for name in presets()}
    assert names - CHINESE - SMALL_PRESETS.keys() <= PUBLISHED.keys() | MASKED_ONLY.keys() | NO_POOLER.keys()


@pytest.mark.parametrize("name", NO_POOLER)
def test_parameter_counts_without_a_pooler(name: str) -> None:
    embeddings, layer, encoder, masked, detector = NO_POOLER[name]
    assert parameter_counts(name)[:3] == (embeddings, layer, encoder)
    for head, expected in (("masked", masked), ("detector", detector)):
        if expected is not None:
            assert parameter_counts(name, head)[-1] == expected


def test_a_popular_formula_lacks_the_biases_of_the_layers_and_the_pooler() -> None:
    """V·H + 512·H + 2·H + 2·H for the embeddings, then 12 times 4H² + 2·4H² + 4H, and nothing else."""
    base = preset("bert-base-uncased")
    h = 768
    assert (30_522 + 512 + 2 + 2) * h + 12 * (4 * h * h + 8 * h * h + 4 * h) == 108_808_704
    popular = count_parameters(base, biases=False, pooler=False)
    assert sum(term.size for term in popular) == 108_808_704
    omitted = omitted_terms(base)
    assert [(term.name, term.formula, term.size) for term in omitted] == [
        ("biases of the layers", "12·4H + 12(F + H)", 82_944),
        ("pooler", "H² + H", 590_592),
    ]
    assert sum(term.size for term in [*popular, *omitted]) == total(base, ("pooler",)) == 109_482_240


@pytest.mark.parametrize("name", ["albert-base-v2", "bert-tiny-uncased"])
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("pooler", [True, False])
def test_omitted_terms_are_listed(name: str, *, biases: bool, pooler: bool) -> None:
    config = preset(name)
    terms = count_parameters(config, biases=biases, pooler=pooler)
    omitted = omitted_terms(config, biases=biases, pooler=pooler)
    assert sum(term.size for term in [*terms, *omitted]) == total(config, ("pooler",))
    assert {term.name for term in omitted} == {
        *["biases of the layers"] * (not biases),
        *["pooler"] * (not pooler),
    }


@pytest.mark.parametrize("size", ["tiny", "mini", "small"])
def test_small_chinese_presets_are_those_sizes_with_the_chinese_vocabulary(size: str) -> None:
    chinese, vocabulary = preset(f"bert-{size}-chinese"), preset("bert-base-chinese").vocab_size
    assert chinese == preset(f"bert-{size}-uncased", vocab_size=vocabulary)
    assert vocabulary == 21_128


@pytest.mark.parametrize(
    ("share", "embedding_size", "size"),
    [
        ("all", 128, 11_683_584),
        ("attention", 128, 63_647_232),
        ("feed_forward", 128, 37_686_528),
        ("none", 128, 89_650_176),
        ("all", 64, 9_681_408),
        ("all", 256, 15_687_936),
        ("none", 64, 87_648_000),
        ("none", 256, 93_654_528),
    ],
)
def test_parameter_counts_with_shared_layers(share: str, embedding_size: int, size: int) -> None:
    """Lan et al. 2020, tables 3 and 4 at base size; the counts equal the modules' sizes."""
    config = preset("albert-base-v2", share=share, embedding_size=embedding_size)
    assert total(config, ("pooler",)) == size
    small = preset(
        "albert-base-v2", share=share, embedding_size=embedding_size, hidden_size=32, num_attention_heads=2,
        vocab_size=50, intermediate_size=40, num_hidden_layers=3,
    )  # fmt: skip
    encoder = Encoder(small)
    actual = sum(p.numel() for p in encoder.parameters())
    assert actual == sum(t.numel() for t in encoder.state_dict().values()) == total(small, ())


def test_classifier_on_base_has_the_published_count() -> None:
    config = preset("bert-base-uncased")
    assert total(config, ("pooler", "classifier"), 2) == 109_483_778
    assert total(config, ("pooler", "classifier"), 1) == 109_483_009
    assert total(config, ("pooler", "classifier"), 3) == 109_482_240 + 3 * 769  # K classes: 769 each


@pytest.mark.parametrize(
    "name",
    [
        "bert-tiny-uncased",
        "bert-mini-cased",
        "roberta-base",
        "albert-base-v2",
        "albert-large-v1",
        "distilbert-base-cased",
        "electra-small-discriminator",
        "electra-base-generator",
    ],
)
def test_modules_have_the_counted_parameters(name: str) -> None:
    config = preset(name, max_position_embeddings=100, type_vocab_size=3, num_hidden_layers=3)
    if "causal" not in get_family(config.model_type).structure:
        config = config.model_copy(update={"causal": True})
    builders = {part: build for part, build in PART_BUILDERS.items() if part != "beside" or config.causal}
    with torch.device("meta"):
        encoder = Encoder(config, torch.Generator())
        modules = {part: build(config, encoder.generator, 7) for part, build in builders.items()}
    for heads in [(), *((part,) for part in builders), tuple(modules)]:
        actual = sum(p.numel() for m in (encoder, *map(modules.get, heads)) for p in m.parameters())
        assert actual == total(config, heads, labels=7)


def test_presets_name_each_published_size_and_case() -> None:
    sizes = ("tiny", "mini", "small", "medium", "base", "large")
    expected = {f"bert-{s}-{c}" for s in sizes for c in ("uncased", "cased")}
    expected |= {f"bert-base-{name}" for name in ("chinese", "multilingual-cased", "multilingual-uncased")}
    expected |= CHINESE | SMALL_PRESETS.keys() | {"roberta-base", "roberta-large", "distilroberta-base"}
    expected |= {"openai-gpt", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}
    expected |= {f"albert-{s}-v{v}" for s in ("base", "large", "xlarge", "xxlarge") for v in (1, 2)}
    expected |= {f"distilbert-base-{name}" for name in ("uncased", "cased", "multilingual-cased")}
    expected |= {
        f"electra-{s}-{model}" for s in ("small", "base", "large") for model in ("discriminator", "generator")
    }
    assert set(presets()) == expected
    assert preset("bert-base-uncased") == ModelConfig()
    assert preset("bert-mini-cased", hidden_dropout_prob=0.0).hidden_dropout_prob == 0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads"),
        ({"share_groups": 2}, "share_groups"),
        ({"share": "all", "share_groups": 99}, "share_groups"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"hidden_size": 16_384, "vocab_size": 1_000_000}, "parameters"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"pad_token_id": 30_522}, "pad_token_id"),
        ({"hidden_act": "eval"}, "hidden_act"),
        ({"hiden_size": 64}, "hidden_size"),
    ],
)
def test_invalid_settings_are_named(changes: dict[str, object], name: str) -> None:
    with pytest.raises(InputError) as caught:
        preset("bert-mini-uncased", **changes)
    assert name in str(caught.value)
    assert "''" not in str(caught.value)  # a setting without a name


def test_an_unknown_preset_suggests_similar_ones() -> None:
    with pytest.raises(InputError) as caught:
        preset("bert-mini-uncasd")
    assert caught.value.code == "unknown_preset"
    assert caught.value.location == "bert-mini-uncasd"
    assert "bert-mini-uncased" in caught.value.hint
    with pytest.raises(InputError) as caught:
        preset("boberta-base")
    assert "roberta-base" in caught.value.hint.partition("presets:")[0]
    with pytest.raises(InputError) as caught:
        preset("zzz")
    assert "bert-{tiny,mini,small}-{uncased,cased,chinese}, " in caught.value.hint
