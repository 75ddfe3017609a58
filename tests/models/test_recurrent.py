"""NNLM, RNN, LSTM, and ELMo: formulas, parity with torch, directions, counts, and model folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.feature_extraction import FeatureExtractor, pool, sequence_states
from bertsmith.models.parameter_count import count_parameters, encoder_parameter_terms
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.models.recurrent import TokenEmbeddings
from bertsmith.packed import Packed

SIZES: dict[str, dict[str, Any]] = {
    "nnlm": {"embedding_size": 5, "context_size": 3, "intermediate_size": 7, "hidden_size": 22},
    "rnn": {"hidden_size": 12, "intermediate_size": 12},
    "lstm": {"hidden_size": 12, "intermediate_size": 12},
    "elmo": {"hidden_size": 12, "intermediate_size": 16, "embedding_size": 6},
}
LENGTHS = (6, 1, 9, 4)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "nnlm": ("nnlm", {}),
    "nnlm without direct connections": ("nnlm", {"direct_connections": False}),
    "rnn": ("rnn", {}),
    "rnn with a projection": ("rnn", {"intermediate_size": 20}),
    "bidirectional rnn": ("rnn", {"causal": False, "intermediate_size": 20}),
    "lstm": ("lstm", {}),
    "lstm with a projection": ("lstm", {"intermediate_size": 20}),
    "bidirectional lstm": ("lstm", {"causal": False, "intermediate_size": 20}),
    "elmo": ("elmo", {}),
    "elmo of characters": ("elmo", {"embedding_type": "char_cnn", "tie_word_embeddings": False}),
    "elmo, not tied": ("elmo", {"tie_directions": False}),
}


def config_of(family: str, **changes: Any) -> ModelConfig:
    dropout = {"hidden_dropout_prob": 0.0}
    return preset(f"{family}-mini", **{"vocab_size": 31, **SIZES[family], **dropout, **changes})


def encoder_of(config: ModelConfig, seed: int = 3) -> Encoder:
    encoder = build_encoder(config, torch.Generator().manual_seed(seed))
    if config.embedding_type == "char_cnn":
        assert isinstance(encoder.embeddings, TokenEmbeddings)
        encoder.embeddings.set_tokens([f"tok{i}" for i in range(config.vocab_size)])
    return encoder


def packed_of(sequences: Sequence[Sequence[int]]) -> Packed:
    return Packed.from_lists(sequences, [[0] * len(sequence) for sequence in sequences])


def a_batch() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 31, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_modules(case: str) -> None:
    config = config_of(CASES[case][0], **CASES[case][1])
    encoder = encoder_of(config)
    terms = encoder_parameter_terms(config)
    assert sum(term.size for term in terms) == sum(p.numel() for p in encoder.parameters())
    biases = [p for name, p in encoder.blocks.named_parameters() if "bias" in name]
    without = sum(term.size for term in encoder_parameter_terms(config, biases=False))
    assert sum(term.size for term in terms) - without == sum(p.numel() for p in biases)


@pytest.mark.parametrize("has_direct", [True, False])
def test_nnlm_has_the_parameters_of_the_paper(has_direct: bool) -> None:
    """Bengio et al. 2003, section 2.1: |V|(1 + nm + h) + h(1 + (n - 1)m), with n - 1 = context_size."""
    config = config_of("nnlm", direct_connections=has_direct)
    v, m, n, h = 31, 5, 4, 7
    expected = v * (1 + n * m + h) + h * (1 + (n - 1) * m) - (0 if has_direct else v * (n - 1) * m)
    assert sum(term.size for term in count_parameters(config, ["masked"])) == expected
    head = MaskedLMHead(config, torch.Generator().manual_seed(0))
    trained = [*encoder_of(config).parameters(), *head.parameters()]
    assert sum(p.numel() for p in trained) == expected


@pytest.mark.parametrize("has_direct", [True, False])
@pytest.mark.parametrize("backwards", [False, True])
def test_nnlm_computes_the_formula_of_the_paper(has_direct: bool, backwards: bool) -> None:
    config = config_of("nnlm", direct_connections=has_direct, backwards=backwards)
    encoder, head = encoder_of(config), MaskedLMHead(config, torch.Generator().manual_seed(0))
    assert head.decoder is not None
    layer, vectors = encoder.blocks[0].hidden, encoder.embeddings.token.weight
    sequences = a_batch()
    logits = head(encoder(packed_of(sequences)), vectors)
    u, w = head.decoder.weight[:, :7], head.decoder.weight[:, 7:]
    rows = []
    for sequence in sequences:
        for t in range(len(sequence)):
            context = sequence[t : t + 3] if backwards else sequence[max(0, t - 2) : t + 1][::-1]
            x = torch.cat([vectors[context].flatten(), torch.zeros(5 * (3 - len(context)))])
            y = head.bias + u @ torch.tanh(layer.bias + layer.weight @ x)
            rows.append(y + w @ x if has_direct else y)
    torch.testing.assert_close(logits, torch.stack(rows))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("family", ["rnn", "lstm"])
def test_states_and_gradients_equal_torch(family: str, causal: bool) -> None:
    """torch's layers on padded input, at 1e-5: sums in another order differ in the last bits."""
    config = config_of(family, causal=causal)
    encoder, sequences = encoder_of(config), a_batch()
    count = 1 if causal else 2
    layer_class = nn.LSTM if family == "lstm" else nn.RNN
    theirs = layer_class(12, 12 // count, 2, bidirectional=not causal, batch_first=True)
    for i, block in enumerate(encoder.blocks):
        for cell, suffix in zip(block.cells.values(), ("", "_reverse"), strict=False):
            for name, parameter in cell.named_parameters():
                with torch.no_grad():
                    getattr(theirs, f"{name.removesuffix('0')}{i}{suffix}").copy_(parameter)
    packed = packed_of(sequences)
    vectors = packed.pad(encoder.embeddings(packed).detach())
    padded = nn.utils.rnn.pack_padded_sequence(vectors, torch.tensor(LENGTHS), True, enforce_sorted=False)
    their_states, _ = nn.utils.rnn.pad_packed_sequence(theirs(padded)[0], True)
    our_states = packed.pad(encoder(packed))
    torch.testing.assert_close(our_states, their_states, atol=1e-5, rtol=0)
    our_states.sin().sum().backward()
    their_states.sin().sum().backward()
    for i, block in enumerate(encoder.blocks):
        for cell, suffix in zip(block.cells.values(), ("", "_reverse"), strict=False):
            for name, parameter in cell.named_parameters():
                grad = getattr(theirs, f"{name.removesuffix('0')}{i}{suffix}").grad
                assert grad.abs().max() > 1e-3
                torch.testing.assert_close(parameter.grad, grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("units", [12, 20])
def test_an_rnn_is_the_formula_of_the_paper(units: int) -> None:
    """h = tanh(U x + W h + b), shared over time (Elman 1990), and a projection if the output has another size."""
    config = config_of("rnn", num_hidden_layers=1, intermediate_size=units)
    encoder, sequence = encoder_of(config), a_batch()[0]
    layer = encoder.blocks[0]
    cell, project = layer.cells["left_to_right"], dict(layer.projections).get("left_to_right", nn.Identity())
    h, states = torch.zeros(units), []
    for token in sequence:
        x = encoder.embeddings.token.weight[token]
        h = torch.tanh(cell.weight_ih_l0 @ x + cell.weight_hh_l0 @ h + cell.bias_ih_l0 + cell.bias_hh_l0)
        states.append(project(h))
    torch.testing.assert_close(encoder(packed_of([sequence])), torch.stack(states))


def test_an_lstm_has_four_times_the_parameters_of_an_rnn_and_open_forget_gates() -> None:
    layers = {name: encoder_of(config_of(name)).blocks[0].cells["left_to_right"] for name in ("rnn", "lstm")}
    sizes = {name: sum(p.numel() for p in layer.parameters()) for name, layer in layers.items()}
    assert sizes["lstm"] == 4 * sizes["rnn"]
    bias = layers["lstm"].bias_ih_l0 + layers["lstm"].bias_hh_l0
    assert bias.tolist() == [0.0] * 12 + [1.0] * 12 + [0.0] * 24  # torch: input, forget, cell, output


def _changed_rows(encoder: Encoder, sequence: list[int], position: int) -> list[Tensor]:
    """Return for each layer which states [T, H] change with the token at a position."""
    other = [*sequence[:position], (sequence[position] + 5) % 29 + 1, *sequence[position + 1 :]]
    with torch.no_grad():
        pairs = zip(
            encoder.hidden_states(packed_of([sequence])),
            encoder.hidden_states(packed_of([other])),
            strict=True,
        )
        return [before != after for before, after in pairs]


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("elmo")])
def test_the_directions_of_an_elmo_see_their_own_side_only(case: str) -> None:
    config = config_of(CASES[case][0], **CASES[case][1])
    encoder = encoder_of(config)
    sequence, position = a_batch()[2], 4
    for changed in _changed_rows(encoder, sequence, position):
        forward, backward = changed[:, :6], changed[:, 6:]
        assert not forward[:position].any()
        assert not backward[position + 1 :].any()
        assert forward[position].any()
        assert backward[position].any()
    last_forward, last_backward = changed.chunk(2, 1)
    assert last_forward[position:].any(1).all()
    assert last_backward[: position + 1].any(1).all()


@pytest.mark.parametrize("case", [name for name in CASES if "elmo" not in name])
@pytest.mark.parametrize("backwards", [False, True])
def test_causal_models_see_one_side_and_bidirectional_ones_both(case: str, backwards: bool) -> None:
    family, changes = CASES[case]
    config = config_of(family, **{**changes, "backwards": backwards and "bidirectional" not in case})
    sequence, position = a_batch()[2], 4
    for layer, changed in enumerate(_changed_rows(encoder_of(config), sequence, position)[1:]):
        if not config.causal:
            assert layer == 0 or changed.any(1).all()
            continue
        assert not (changed[position + 1 :] if backwards else changed[:position]).any()
        end = position + 3 if family == "nnlm" else len(sequence)
        seen = changed[position - 2 : position + 1] if backwards else changed[position:end]
        assert seen.any(1).all()


@pytest.mark.parametrize("case", CASES)
def test_a_sequence_does_not_depend_on_its_batch(case: str) -> None:
    encoder, sequences = encoder_of(config_of(CASES[case][0], **CASES[case][1])).eval(), a_batch()
    with torch.no_grad():
        together = encoder.hidden_states(packed_of([*sequences, []]))
        alone = [encoder.hidden_states(packed_of([sequence])) for sequence in sequences]
    for layer, states in enumerate(together):
        expected = torch.cat([states_alone[layer] for states_alone in alone])
        torch.testing.assert_close(states, expected, atol=1e-6, rtol=0)  # rounding


@pytest.mark.parametrize("case", CASES)
def test_rows_are_selected_and_padded_ids_and_empty_batches_are_read(case: str) -> None:
    encoder, sequences = encoder_of(config_of(CASES[case][0], **CASES[case][1])).eval(), a_batch()
    packed = packed_of(sequences)
    hidden = encoder(packed)
    assert torch.equal(encoder(packed, rows=torch.tensor([7, 2, 2])), hidden[[7, 2, 2]])
    ids = packed.pad(packed.tokens)
    mask = torch.arange(ids.shape[1]) < torch.tensor(LENGTHS)[:, None]
    torch.testing.assert_close(encoder(ids, mask.long()), packed.pad(hidden))
    assert encoder(packed_of([])).shape == (0, encoder.config.hidden_size)


@pytest.mark.parametrize("case", CASES)
def test_bf16_and_dropout_work(case: str) -> None:
    config = config_of(CASES[case][0], **CASES[case][1], hidden_dropout_prob=0.5)
    encoder, packed = encoder_of(config), packed_of(a_batch())
    first, second = encoder(packed), encoder(packed)
    assert not torch.equal(first, second)  # other masks
    encoder.eval()
    exact = encoder(packed)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = encoder(packed)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.03, rtol=0.03)  # 8 bits of bf16


@pytest.mark.parametrize("case", CASES)
def test_an_encoder_alone_is_written_and_opened_again(case: str, tmp_path: Path) -> None:
    encoder, packed = encoder_of(config_of(CASES[case][0], **CASES[case][1])), packed_of(a_batch())
    folder = read_folder(write_folder(tmp_path / "m", encoder.config, {"encoder": encoder}))
    assert folder.config == encoder.config
    assert torch.equal(folder.encoder().eval()(packed), encoder.eval()(packed))


@pytest.mark.parametrize("case", CASES)
def test_a_folder_is_written_and_opened_again(case: str, tmp_path: Path) -> None:
    config = config_of(CASES[case][0], **CASES[case][1])
    encoder, generator = encoder_of(config), torch.Generator().manual_seed(0)
    parts: dict[str, nn.Module] = {"encoder": encoder, "masked": MaskedLMHead(config, generator)}
    if not config.tie_directions:
        parts["masked_backward"] = MaskedLMHead(config, generator)
    folder = read_folder(write_folder(tmp_path / "m", config, parts))
    assert folder.config == config
    assert folder.parts == parts.keys()
    head = MaskedLMHead(config, torch.Generator())
    folder.load_into("masked", head)
    packed = packed_of(a_batch())
    assert torch.equal(folder.encoder().eval()(packed), encoder.eval()(packed))
    assert all(map(torch.equal, head.parameters(), parts["masked"].parameters()))
    terms = count_parameters(config, parts.keys() - {"encoder"})
    assert sum(term.size for term in terms) == sum(t.numel() for t in folder.weights().values())


def test_sequence_heads_read_the_ends_that_have_seen_the_whole_text() -> None:
    config = config_of("lstm", causal=False)
    encoder, packed = encoder_of(config).eval(), packed_of(a_batch())
    features = FeatureExtractor(config, torch.Generator()).sequence_features(encoder, packed)
    hidden = encoder(packed)
    expected = torch.cat([hidden[packed.last_token_rows, :6], hidden[packed.first_token_rows, 6:]], 1)
    assert torch.equal(features, expected)


@pytest.mark.parametrize("changes", [{}, {"backwards": True}])
def test_sequence_heads_of_an_nnlm_read_the_whole_text(changes: dict[str, Any]) -> None:
    """A state depends on a few tokens, so any other token must reach the head through another state."""
    config = config_of("nnlm", **changes)
    encoder, rows = encoder_of(config).eval(), [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [7, 8]]
    extractor = FeatureExtractor(config, torch.Generator())

    def features_of(rows: list[list[int]]) -> torch.Tensor:
        packed = Packed.from_lists(rows, [[0] * len(row) for row in rows])
        features = extractor.sequence_features(encoder, packed)
        torch.testing.assert_close(features, sequence_states(config, encoder(packed), packed))
        torch.testing.assert_close(features, pool(encoder, packed, "mean"))
        return features

    features = features_of(rows)
    for i in range(len(rows[0])):
        changed = features_of([[20 if j == i else token for j, token in enumerate(rows[0])], rows[1]])
        assert not torch.allclose(changed[0], features[0], atol=1e-4)
        assert torch.equal(changed[1], features[1])


def test_mixing_weights_of_an_elmo_sum_to_one_and_include_the_embeddings() -> None:
    config = config_of("elmo")
    features = FeatureExtractor(config, torch.Generator(), "sum_with_embeddings")
    encoder, packed = encoder_of(config).eval(), packed_of(a_batch())
    with torch.no_grad():
        features.mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
        features.mix.scale.fill_(1.5)
    weights = features.mix.weights.softmax(0)
    assert weights.sum().item() == pytest.approx(1)
    expected = 1.5 * sum(w * h for w, h in zip(weights, encoder.hidden_states(packed), strict=True))
    torch.testing.assert_close(features(encoder, packed), expected)
    features(encoder, packed).square().sum().backward()
    assert (features.mix.weights.grad.abs() > 0).all()


def test_character_vectors_depend_on_the_string_alone() -> None:
    config = config_of("elmo", embedding_type="char_cnn", tie_word_embeddings=False)
    encoder = encoder_of(config)
    assert isinstance(encoder.embeddings, TokenEmbeddings)
    tokens = [f"{i}".zfill(3) for i in range(31)]
    tokens[4] = tokens[9] = "苹果"
    encoder.embeddings.set_tokens(tokens)
    token = encoder.embeddings.token
    assert not token.characters.requires_grad
    vectors = token(torch.tensor([4, 9, 4, 5, 6]))
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[3], vectors[4])
    torch.testing.assert_close(vectors[3:4], token(torch.tensor([5])))


@pytest.mark.parametrize(
    ("family", "changes", "argument"),
    [
        ("nnlm", {"hidden_size": 23}, "model.hidden_size"),
        ("nnlm", {"causal": False}, "model.causal"),
        ("nnlm", {"tie_word_embeddings": True}, "model.tie_word_embeddings"),
        ("lstm", {"causal": False, "intermediate_size": 11}, "model.intermediate_size"),
        ("lstm", {"context_size": 3}, "model.context_size"),
        ("rnn", {"causal": False, "hidden_size": 11, "intermediate_size": 11}, "model.hidden_size"),
        ("lstm", {"num_attention_heads": 2}, "model.num_attention_heads"),
        ("elmo", {"embedding_size": 7}, "model.embedding_size"),
        ("elmo", {"embedding_type": "char_cnn"}, "model.tie_word_embeddings"),
        ("elmo", {"causal": True}, "model.causal"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(family: str, changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(InputError) as caught:
        encoder_of(config_of(family, **changes))
    assert caught.value.argument == argument


def test_there_is_no_attention_to_show() -> None:
    with pytest.raises(InputError) as caught:
        encoder_of(config_of("lstm")).attention_maps(packed_of(a_batch()))
    assert caught.value.code == "no_attention"


def test_minis_have_about_as_many_parameters_as_bert_mini() -> None:
    bert = sum(term.size for term in encoder_parameter_terms(preset("bert-mini-uncased")))
    for name in ("rnn", "lstm", "elmo"):
        count = sum(term.size for term in encoder_parameter_terms(preset(f"{name}-mini")))
        assert abs(count / bert - 1) < 0.02
    nnlm = sum(term.size for term in count_parameters(preset("nnlm-mini"), ["masked"]))
    assert abs(nnlm / bert - 1) < 0.02
