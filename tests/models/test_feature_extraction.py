"""What a tagger reads of the encoder: each choice of layers, a BiLSTM on them; saved, loaded, counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.inference.model import Model
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.feature_extraction import Features, Layers, chosen
from bertsmith.models.heads import PARTS
from bertsmith.models.parameter_count import count_parameters
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
PACKED = Packed.of_lists([[2, 7, 8, 3], [2, 9, 3], [2, 11, 12, 13, 14, 3]], [[0] * 4, [0] * 3, [0] * 6])
CHOICES = [*get_args(Layers)]


def features(layers: Any, *, recurrent: bool = False, seed: int = 0) -> Features:
    return Features(CONFIG, torch.Generator().manual_seed(seed), layers, recurrent=recurrent)


def test_each_choice_reads_its_layers() -> None:
    states = ENCODER.hidden_states(PACKED)
    assert torch.equal(features("last")(ENCODER, PACKED), states[-1])
    for layers, wanted in (
        ("second_to_last", states[-2]),
        ("embeddings", states[0]),
        ("sum_last_four", torch.stack(states[-4:]).mean(0)),
        ("sum_all", torch.stack(states[1:]).mean(0)),
    ):
        torch.testing.assert_close(features(layers)(ENCODER, PACKED), wanted)
    joined = features("concat_last_four")
    linear = joined.parts["joined"].linear
    torch.testing.assert_close(joined(ENCODER, PACKED), linear(torch.cat(states[-4:], 1)))
    assert [chosen(layers, 5) for layers in CHOICES] == [
        [5], [4], [0], [2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 3, 4, 5],
    ]  # fmt: skip


@pytest.mark.parametrize("layers", ["sum_last_four", "sum_all"])
def test_weights_of_a_sum_are_learnt_and_those_left_out_stay_so(layers: Layers) -> None:
    made = features(layers)
    mix = made.parts["mix"]
    made(ENCODER, PACKED)[:, 0].square().sum().backward()
    inside = [i in chosen(layers, 5) for i in range(6)]
    assert [bool(g) for g in mix.weights.grad] == inside
    assert mix.scale.grad.abs() > 0
    assert mix.weights.softmax(0).tolist() == pytest.approx([1 / sum(inside) if i else 0.0 for i in inside])


@pytest.mark.parametrize("layers", ["second_to_last", "embeddings"])
def test_a_choice_of_one_layer_is_not_trained(layers: Layers) -> None:
    assert not any(p.requires_grad for p in features(layers).parameters())


@pytest.mark.parametrize("layers", CHOICES)
def test_a_sequence_is_read_the_same_alone_and_in_a_batch(layers: Layers) -> None:
    made = features(layers, recurrent=True).eval()
    whole = made(ENCODER, PACKED)
    assert whole.shape == (13, 32)
    alone = made(ENCODER, Packed.of_lists([[2, 9, 3]], [[0] * 3]))
    torch.testing.assert_close(whole[4:7], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [7, 2, 6]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bilstm_computes_in_fp32_whatever_is_around_it(lengths: list[int], dtype: torch.dtype) -> None:
    made = features("last", recurrent=True).parts["recurrent"]
    x = torch.randn(15, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = made(x.float(), lengths)
    with torch.autocast("cpu", torch.bfloat16):
        found = made(x, lengths)
    assert torch.equal(found, wanted)
    found.sum().backward()


def test_a_bilstm_reads_both_directions_of_its_own_sequence_alone() -> None:
    made = features("last", recurrent=True)
    other = Packed.of_lists([[2, 7, 8, 3], [2, 9, 3], [2, 11, 12, 13, 15, 3]], [[0] * 4, [0] * 3, [0] * 6])
    first, second = made(ENCODER, PACKED), made(ENCODER, other)
    torch.testing.assert_close(first[:7], second[:7], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(first[7], second[7])


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_heads_on_sequences_read_one_token_of_the_encoder_and_both_ends_of_a_bilstm(causal: bool) -> None:
    """torch's own last states, `h_n`, are those of the top layer's two directions."""
    config = CONFIG.model_copy(update={"causal": causal})
    encoder = Encoder(config, torch.Generator().manual_seed(0)).eval()
    plain, made = (Features(config, torch.Generator(), "last", recurrent=r) for r in (False, True))
    states = encoder(PACKED)
    rows = [3, 6, 12] if causal else [0, 4, 7]
    assert torch.equal(plain.of_sequences(encoder, PACKED), states[rows])
    lengths = PACKED.lengths.tolist()
    lasts = [made.parts["recurrent"].lstm(some)[1][0] for some in torch.split(states, lengths)]
    wanted = torch.stack([torch.cat([last[2], last[3]]) for last in lasts])
    torch.testing.assert_close(made.of_sequences(encoder, PACKED), wanted, atol=1e-6, rtol=1e-5)


def test_weights_come_from_the_generator_alone() -> None:
    torch.manual_seed(1)
    first = features("concat_last_four", recurrent=True).state_dict()
    torch.manual_seed(2)
    again, other = (features("concat_last_four", recurrent=True, seed=s).state_dict() for s in (0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_parts_are_counted_as_they_are() -> None:
    plain = sum(term.size for term in count_parameters(CONFIG, []))
    for layers in CHOICES:
        for recurrent in (False, True):
            made = features(layers, recurrent=recurrent)
            found = sum(term.size for term in count_parameters(CONFIG, list(made.parts))) - plain
            assert found == sum(p.numel() for p in made.parameters())
            for name, part in made.parts.items():
                same = PARTS[name](CONFIG, torch.Generator(), 1)
                shapes = {key: value.shape for key, value in part.state_dict().items()}
                assert shapes == {key: value.shape for key, value in same.state_dict().items()}


def test_four_layers_need_four() -> None:
    few = CONFIG.model_copy(update={"num_hidden_layers": 3})
    with pytest.raises(InputError, match=r"task.layers=sum_last_four: the model has 3 layers"):
        Features(few, torch.Generator(), "sum_last_four")


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
    how = {"layers": layers, "head": head, "decoder": decoder, "learning_rate": 1e-2, "max_steps": 4}
    settings = ["train.threads=1", "train.precision=fp32", "train.tensorboard=false"]
    tagger = bs.finetune("tag", base, tmp_path / "tags", train=rows, dev=rows, settings=settings, **how)
    again = bs.load(tmp_path / "tags" / "model")
    plain = (layers, head) == ("last", "linear")
    assert again.folder.architecture == ("BertForTokenClassification" if plain else "BertForFeatureTagging")
    words = [row["words"] for row in rows]
    assert again.predict(words) == tagger.predict(words)
    assert again.evaluate(rows)["f1"] == tagger.report["dev"]["f1"]
    assert again.info()["parameters"] == sum(
        p.numel() for module in (again.encoder, again.task) for p in module.parameters()
    )
    with pytest.raises(InputError, match=r"task\.layers is .* was trained with"):
        again.predict(words, layers="embeddings" if layers != "embeddings" else "last")
