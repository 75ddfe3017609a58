"""Feature extraction: each choice of layers and a BiLSTM on them are computed, saved, loaded, and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.inference.model import Model
from bertsmith.models.config import Layers, ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.feature_extraction import FeatureExtractor, layer_indices
from bertsmith.models.parameter_count import count_parameters
from bertsmith.models.task_heads import PART_BUILDERS
from bertsmith.packed import Packed

CONFIG = ModelConfig(
    model_type="bert",
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=5,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ENCODER = Encoder(CONFIG, torch.Generator().manual_seed(0)).eval()
PACKED = Packed.from_lists([[2, 7, 8, 3], [2, 9, 3], [2, 11, 12, 13, 14, 3]], [[0] * 4, [0] * 3, [0] * 6])
CHOICES = [*get_args(Layers)]


def features(layers: Any, *, recurrent: bool = False, seed: int = 0) -> FeatureExtractor:
    return FeatureExtractor(CONFIG, torch.Generator().manual_seed(seed), layers, recurrent=recurrent)


def test_each_choice_uses_its_layers() -> None:
    states = ENCODER.hidden_states(PACKED)
    assert torch.equal(features("last")(ENCODER, PACKED), states[-1])
    for layers, expected in (
        ("second_to_last", states[-2]),
        ("embeddings", states[0]),
        ("sum_last_four", torch.stack(states[-4:]).mean(0)),
        ("sum_all", torch.stack(states[1:]).mean(0)),
    ):
        torch.testing.assert_close(features(layers)(ENCODER, PACKED), expected)
    joined = features("concat_last_four")
    linear = joined.parts["joined"].linear
    torch.testing.assert_close(joined(ENCODER, PACKED), linear(torch.cat(states[-4:], 1)))
    assert [layer_indices(layers, 5) for layers in CHOICES] == [
        [5], [4], [0], [2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5],
    ]  # fmt: skip


@pytest.mark.parametrize("layers", ["sum_last_four", "sum_all"])
def test_weights_of_a_sum_are_learned_and_excluded_layers_stay_excluded(layers: Layers) -> None:
    extractor = features(layers)
    mix = extractor.parts["mix"]
    extractor(ENCODER, PACKED)[:, 0].square().sum().backward()
    included = [i in layer_indices(layers, 5) for i in range(6)]
    assert [bool(g) for g in mix.weights.grad] == included
    assert mix.scale.grad.abs() > 0
    assert mix.weights.softmax(0).tolist() == pytest.approx(
        [1 / sum(included) if i else 0.0 for i in included]
    )


@pytest.mark.parametrize("layers", ["second_to_last", "embeddings"])
def test_the_weight_of_one_layer_is_not_trained(layers: Layers) -> None:
    assert not any(p.requires_grad for p in features(layers).parameters())


@pytest.mark.parametrize("layers", CHOICES)
def test_a_sequence_does_not_depend_on_the_batch(layers: Layers) -> None:
    extractor = features(layers, recurrent=True).eval()
    batch = extractor(ENCODER, PACKED)
    assert batch.shape == (13, 32)
    single = extractor(ENCODER, Packed.from_lists([[2, 9, 3]], [[0] * 3]))
    torch.testing.assert_close(batch[4:7], single, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [7, 2, 6]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bilstm_computes_in_fp32_under_autocast(lengths: list[int], dtype: torch.dtype) -> None:
    lstm = features("last", recurrent=True).parts["recurrent"]
    x = torch.randn(15, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    ids = [[5] * length for length in lengths]
    packed = Packed.from_lists(ids, ids)
    expected = lstm(x.float(), packed)
    with torch.autocast("cpu", torch.bfloat16):
        output = lstm(x, packed)
    assert torch.equal(output, expected)
    output.sum().backward()


def test_a_bilstm_uses_both_directions_of_one_sequence() -> None:
    extractor = features("last", recurrent=True)
    other = Packed.from_lists([[2, 7, 8, 3], [2, 9, 3], [2, 11, 12, 13, 15, 3]], [[0] * 4, [0] * 3, [0] * 6])
    first, second = extractor(ENCODER, PACKED), extractor(ENCODER, other)
    torch.testing.assert_close(first[:7], second[:7], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(first[7], second[7])


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_sequence_features_are_one_token_of_the_encoder_and_both_ends_of_a_bilstm(causal: bool) -> None:
    """The ends equal torch's final states `h_n` of the top layer's two directions."""
    config = CONFIG.model_copy(update={"causal": causal})
    encoder = Encoder(config, torch.Generator().manual_seed(0)).eval()
    plain, recurrent = (
        FeatureExtractor(config, torch.Generator(), "last", recurrent=r) for r in (False, True)
    )
    states = encoder(PACKED)
    rows = [3, 6, 12] if causal else [0, 4, 7]
    assert torch.equal(plain.sequence_features(encoder, PACKED), states[rows])
    lengths = PACKED.lengths.tolist()
    lstm = recurrent.parts["recurrent"].lstm
    final_states = [lstm(sequence)[1][0] for sequence in torch.split(states, lengths)]
    expected = torch.stack([torch.cat([final[2], final[3]]) for final in final_states])
    torch.testing.assert_close(recurrent.sequence_features(encoder, PACKED), expected, atol=1e-6, rtol=1e-5)


def test_weights_come_from_the_generator_only() -> None:
    torch.manual_seed(1)
    first = features("concat_last_four", recurrent=True).state_dict()
    torch.manual_seed(2)
    again, other = (features("concat_last_four", recurrent=True, seed=s).state_dict() for s in (0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_parameter_counts_equal_the_parts() -> None:
    plain = sum(term.size for term in count_parameters(CONFIG, []))
    for layers in CHOICES:
        for recurrent in (False, True):
            extractor = features(layers, recurrent=recurrent)
            count = sum(term.size for term in count_parameters(CONFIG, list(extractor.parts))) - plain
            assert count == sum(p.numel() for p in extractor.parameters())
            for name, part in extractor.parts.items():
                rebuilt = PART_BUILDERS[name](CONFIG, torch.Generator(), 1)
                shapes = {key: value.shape for key, value in part.state_dict().items()}
                assert shapes == {key: value.shape for key, value in rebuilt.state_dict().items()}


def test_four_layers_need_a_model_of_four_layers() -> None:
    config = CONFIG.model_copy(update={"num_hidden_layers": 3})
    with pytest.raises(InputError) as caught:
        FeatureExtractor(config, torch.Generator(), "sum_last_four")
    assert caught.value.code == "too_few_layers"
    assert caught.value.argument == "layers"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("features")
    deep = ("model.num_hidden_layers=4", "train.max_steps=2")
    return tiny_run.run(tiny_run.make_shards(folder / "shards"), folder / "bert", *deep)


@pytest.mark.parametrize("head", ["linear", "bilstm"])
@pytest.mark.parametrize("layers", CHOICES)
def test_a_tagger_is_trained_saved_and_loaded(base: Model, tmp_path: Path, layers: Layers, head: str) -> None:
    rows = [
        {"words": [word, "kaba"], "tags": ["B-X" if word[0] in "lk" else "O", "O"]} for word in tiny_run.WORDS
    ]
    decoder = "crf" if layers == "sum_all" else "softmax"
    options = {"layers": layers, "head": head, "decoder": decoder, "learning_rate": 1e-2, "max_steps": 4}
    settings = ["train.threads=1", "train.precision=fp32", "train.report_to=none"]
    tagger = bs.finetune(
        "tag", base, tmp_path / "tags", train=rows, validation=rows, settings=settings, **options
    )
    loaded = bs.load(tmp_path / "tags" / "model")
    plain = (layers, head) == ("last", "linear")
    assert loaded.folder.architecture == ("BertForTokenClassification" if plain else "BertForFeatureTagging")
    words = [row["words"] for row in rows]
    assert loaded.predict(words) == tagger.predict(words)
    assert loaded.evaluate(rows).f1 == tagger.report["validation"]["f1"]
    assert loaded.info()["parameters"] == sum(
        p.numel() for module in (loaded.encoder, loaded.task.model) for p in module.parameters()
    )
    with pytest.raises(InputError) as caught:
        loaded.predict(words, layers="embeddings" if layers != "embeddings" else "last")
    assert (caught.value.code, caught.value.argument) == ("fixed_setting_changed", "layers")
