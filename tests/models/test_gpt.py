"""GPT and GPT-2: sizes, causality, and reading step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny_run
from bertsmith.errors import InputError
from bertsmith.models.attention import attention_weights
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, get_family, preset
from bertsmith.models.incremental import IncrementalEncoder, RecomputingEncoder, step_encoder
from bertsmith.models.parameter_count import count_parameters
from bertsmith.packed import Packed
from bertsmith.pretraining.run import pretrain
from family_harness import transformers

SMALL = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "initializer_range": 0.3,
}
# Causal models of three families, with LayerNorms after and before the sublayers.
PUBLISHED_COUNTS = [
    ("openai-gpt", 116_534_784),
    ("gpt2", 124_439_808),
    ("gpt2-medium", 354_823_168),
    ("gpt2-large", 774_030_080),
    ("gpt2-xl", 1_557_611_200),
]
PRESETS = ("gpt-mini", "gpt2-mini", "bert-tiny-uncased")
LENGTHS = (1, 4, 4, 9, 4, 30)


def config_of(name: str) -> ModelConfig:
    return preset(name, **SMALL, causal=True)


def encoder_of(name: str) -> Encoder:
    return build_encoder(config_of(name), torch.Generator().manual_seed(2)).eval()


def sequences(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    random = np.random.default_rng(4)
    return [random.integers(1, SMALL["vocab_size"], length).tolist() for length in lengths]


def packed(ids: list[list[int]]) -> Packed:
    return Packed.from_lists(ids, [[0] * len(sequence) for sequence in ids])


@pytest.mark.parametrize(("name", "count"), PUBLISHED_COUNTS)
def test_published_models_have_as_many_parameters(name: str, count: int) -> None:
    config = preset(name)
    terms = count_parameters(config, ["masked"])
    assert sum(term.size for term in terms) == count
    with torch.device("meta"):
        encoder = build_encoder(config, torch.Generator())
    assert sum(parameter.numel() for parameter in encoder.parameters()) == count


@pytest.mark.parametrize("name", ["gpt-mini", "gpt2-mini"])
def test_mini_models_are_as_large_as_bert_mini(name: str) -> None:
    ours, bert = (
        sum(term.size for term in count_parameters(preset(n, vocab_size=30_522), ()))
        for n in (name, "bert-mini-uncased")
    )
    assert ours == pytest.approx(bert, rel=0.02)


@pytest.mark.parametrize("name", ["gpt-mini", "gpt2-mini"])
@pytest.mark.parametrize("change", [{"causal": False}, {"backwards": True}, {"type_vocab_size": 2}])
def test_settings_of_other_families_are_refused(name: str, change: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        get_family(preset(name).model_type).check_config(preset(name, **change))
    assert (caught.value.code, caught.value.argument) == ("not_in_family", f"model.{next(iter(change))}")


@pytest.mark.parametrize("name", PRESETS)
def test_a_token_never_changes_states_before_it(name: str) -> None:
    """Every layer, every position: earlier states keep all bits, and the states from the token on change."""
    encoder, (ids,) = encoder_of(name), sequences((12,))
    with torch.no_grad():
        before = encoder.hidden_states(packed([ids]))
        for t in range(len(ids)):
            changed = [*ids[:t], ids[t] % 60 + 1, *ids[t + 1 :]]
            after = encoder.hidden_states(packed([changed]))
            for x, y in zip(before[1:], after[1:], strict=True):
                assert torch.equal(x[:t], y[:t])
                assert (x[t:] != y[t:]).any(1).all()


@pytest.mark.parametrize("name", PRESETS)
def test_weights_of_later_tokens_are_exactly_zero(name: str) -> None:
    for maps in encoder_of(name).attention_maps(packed(sequences())):
        for weights in maps:
            assert (weights.triu(1) == 0).all()
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_equal_scores_give_equal_weights_of_earlier_tokens() -> None:
    """The example "i have a dream": rows 1; ½ ½; ⅓ ⅓ ⅓; ¼ ¼ ¼ ¼."""
    (weights,) = attention_weights(torch.zeros(4, 3 * 8), packed([[1, 2, 3, 4]]), 1, direction="before")
    torch.testing.assert_close(weights[0], torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None])


def read_steps(encoder: Encoder, ids: list[list[int]], first: list[int], *, use_cache: bool = True) -> Tensor:
    """Read `first` tokens of each sequence at once and the others one by one; return all states, [B, steps, H]."""
    steps = step_encoder(encoder, use_cache=use_cache)
    assert isinstance(steps, IncrementalEncoder if use_cache else RecomputingEncoder)
    num_steps = len(ids[0]) - first[0]
    parts: list[list[list[int]]] = [
        [sequence[:n], *([token] for token in sequence[n:])] for sequence, n in zip(ids, first, strict=True)
    ]
    return torch.stack([steps.read([part[step] for part in parts]) for step in range(num_steps + 1)], 1)


@pytest.mark.parametrize("use_cache", [True, False], ids=["cache", "recomputing"])
@pytest.mark.parametrize("name", PRESETS)
def test_steps_have_the_states_of_the_whole_sequence(name: str, use_cache: bool) -> None:
    """The tolerance is for sums in another order: states are of size 1 to 10."""
    encoder, num_steps = encoder_of(name), 7
    first = list(LENGTHS)
    ids = sequences(tuple(n + num_steps for n in first))
    with torch.no_grad():
        steps = read_steps(encoder, ids, first, use_cache=use_cache)
        whole = torch.split(encoder(packed(ids)), [len(sequence) for sequence in ids])
    for mine, states in zip(steps, whole, strict=True):
        torch.testing.assert_close(mine, states[-num_steps - 1 :], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_sequence_does_not_depend_on_its_neighbors_not_even_in_rounding(name: str, bf16: bool) -> None:
    encoder, first = encoder_of(name), list(LENGTHS)
    ids = sequences(tuple(n + 5 for n in first))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        together = read_steps(encoder, ids, first)
        for sequence, n, states in zip(ids, first, together, strict=True):
            assert torch.equal(read_steps(encoder, [sequence], [n])[0], states)


@pytest.mark.parametrize("use_cache", [True, False], ids=["cache", "recomputing"])
def test_sequences_that_are_kept_go_on_as_before(use_cache: bool) -> None:
    encoder, ids = encoder_of("gpt2-mini"), sequences()
    for kept in ([0, 2, 5], [3], [1, 2, 4], list(range(len(ids)))):
        steps = step_encoder(encoder, use_cache=use_cache)
        with torch.no_grad():
            steps.read(ids)
            steps.keep(np.array(kept))
            states = steps.read([[7] for _ in kept])
            steps.keep(np.array([len(kept) - 1]))
            states = torch.cat([states, steps.read([[9]])])
            alone = step_encoder(encoder, use_cache=use_cache)
            for row, i in enumerate(kept):
                whole = encoder(packed([[*ids[i], 7]]))[-1]
                torch.testing.assert_close(states[row], whole, atol=1e-5, rtol=1e-5)
            alone.read([[*ids[kept[-1]], 7]])
            torch.testing.assert_close(states[-1], alone.read([[9]])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt-mini", "gpt2-mini"])
def test_pre_training_needs_the_presets_name_alone(name: str, tmp_path: Path) -> None:
    """Trained, resumed, scored, continued, and opened by transformers without a missing or unexpected tensor."""
    shards = tiny_run.make_shards(tmp_path)
    sizes = ["model.intermediate_size=128"]  # transformers' GPT has always 4 H
    settings = [*tiny_run.SETTINGS, *sizes, "data.sentence_task=none", "train.max_steps=4"]
    pretrain(shards, tmp_path / "run", preset=name, settings=settings)
    model = pretrain(shards, tmp_path / "run", settings=["train.max_steps=6"], resume=True)
    assert model.info()["parameters"] == sum(t.numel() for t in model.folder.weights().values())
    assert model.score("kaba lode").score < 0
    assert model.generate("kaba", temperature=0, max_new_tokens=3).tokens <= 3
    library = getattr(transformers(), model.folder.architecture)
    _, report = library.from_pretrained(model.model_folder, output_loading_info=True)
    assert {key: list(names) for key, names in report.items() if names} == {}
