"""Decoders: teacher-forced and step-wise outputs agree, no token sees a later one, attention as its formulas."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from bertsmith.models.attention import attention_weights
from bertsmith.models.config import ModelConfig
from bertsmith.models.cross_attention import AttentionScore, CrossAttention, PairLayout
from bertsmith.models.decoder import EncodedSource, RecurrentDecoder, TargetDecoder, TransformerDecoder
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.parameter_count import count_parameters
from bertsmith.models.weight_init import sinusoidal_positions
from bertsmith.packed import Packed

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
}
CONFIG = ModelConfig(**SIZES)
CONFIGS = {
    "post": CONFIG,
    "pre": ModelConfig(**SIZES, norm="pre"),
    "small embeddings": ModelConfig(**SIZES, model_type="albert", embedding_size=16),
}
DECODERS = [*CONFIGS, "dot", "bilinear", "concat", "additive", "none"]
SOURCES = [[2, 7, 9, 11, 3], [2, 8, 3], [2, 7, 9, 3], [2, 30, 31, 32, 3]]
TARGETS = [[2, 20, 21, 22], [2, 23, 24, 25], [2, 26, 27, 28], [2, 20, 29, 22]]  # of one length, for steps


def made(name: str) -> tuple[Encoder, TargetDecoder]:
    config, generator = CONFIGS.get(name, CONFIG), torch.Generator().manual_seed(0)
    encoder = build_encoder(config, generator)
    if name in CONFIGS:
        decoder: TargetDecoder = TransformerDecoder(config, generator)
    else:
        decoder = RecurrentDecoder(config, generator, name)  # type: ignore[arg-type]
    return encoder.eval(), decoder.eval()


def packed_of(rows: list[list[int]]) -> Packed:
    return Packed.from_lists(rows, [[0] * len(row) for row in rows])


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "none"])
@torch.no_grad()
def test_attention_weights_are_those_that_average_the_source(name: str) -> None:
    encoder, decoder = made(name)
    packed, targets = packed_of(SOURCES[:1]), packed_of(TARGETS[:1])
    source = EncodedSource(encoder(packed), packed)
    averages: list[tuple[Tensor, Tensor]] = []  # of each layer, before the output projection, by both

    def record(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, AttentionScore):
            averages.append((module.weights(*inputs[:2])[0] @ inputs[1], output))
            return
        _, values = inputs[1].chunk(2, -1)
        heads = values.view(len(values), module.num_heads, -1).transpose(0, 1)
        mean = (module.weights(*inputs[:2]) @ heads).transpose(0, 1).flatten(1)
        averages.append((module.output(mean), output))

    for module in decoder.modules():
        if isinstance(module, AttentionScore | CrossAttention):
            module.register_forward_hook(record)
    weights = decoder.attention_weights(encoder.embeddings, targets, source)
    assert len(weights) == len(averages) == (2 if name in CONFIGS else 1)
    for layer, (expected, output) in zip(weights, averages, strict=True):
        assert layer.shape[1:] == (4, 5)
        torch.testing.assert_close(expected, output, atol=1e-5, rtol=1e-5)


def outputs_of(encoder: Encoder, decoder: TargetDecoder, sources: list[list[int]], targets: list[list[int]]):
    packed = packed_of(sources)
    source = EncodedSource(encoder(packed), packed)
    return decoder(encoder.embeddings, packed_of(targets), source)


@pytest.mark.parametrize("name", DECODERS)
def test_steps_are_the_outputs_of_whole_targets(name: str) -> None:
    encoder, decoder = made(name)
    with torch.no_grad():
        packed = packed_of(SOURCES)
        source = EncodedSource(encoder(packed), packed)
        state = decoder.start(source)
        steps = [decoder.step(encoder.embeddings, torch.tensor(tokens), state) for tokens in zip(*TARGETS)]  # noqa: B905
        whole = decoder(encoder.embeddings, packed_of(TARGETS), source)
    torch.testing.assert_close(torch.stack(steps, 1).flatten(0, 1), whole, atol=2e-6, rtol=1e-5)
    assert whole.shape == (16, 16 if name == "small embeddings" else 32)


@pytest.mark.parametrize("name", DECODERS)
def test_hypotheses_are_copied_and_dropped(name: str) -> None:
    """Two for the first source, none for the second, one for each other; they go on as if always alone."""
    encoder, decoder = made(name)
    rows, sources = [0, 0, 2, 3], [0, 0, 2, 3]
    with torch.no_grad():
        packed = packed_of(SOURCES)
        state = decoder.start(EncodedSource(encoder(packed), packed))
        decoder.step(encoder.embeddings, torch.tensor([2, 2, 2, 2]), state)
        state.select(torch.tensor(rows), np.array([2, 0, 1, 1]))
        step = decoder.step(encoder.embeddings, torch.tensor([20, 23, 26, 20]), state)
        targets = [[2, token] for token in (20, 23, 26, 20)]
        expected = outputs_of(encoder, decoder, [SOURCES[i] for i in sources], targets)[1::2]
    torch.testing.assert_close(step, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_no_output_depends_on_a_later_token_or_on_another_pair(name: str) -> None:
    encoder, decoder = made(name)
    changed = [TARGETS[0], [2, 23, 40, 25], *TARGETS[2:]]  # the seventh of the packed tokens
    with torch.no_grad():
        before, after = (outputs_of(encoder, decoder, SOURCES, targets) for targets in (TARGETS, changed))
        is_equal = (before == after).all(1).tolist()
        assert is_equal == [True] * 6 + [False] * 2 + [True] * 8
        other_source = [SOURCES[0], [2, 9, 3], *SOURCES[2:]]
        after = outputs_of(encoder, decoder, other_source, TARGETS)
        assert (before == after).all(1).tolist() == [True] * 4 + [False] * 4 + [True] * 8


@pytest.mark.parametrize("name", DECODERS)
def test_gradients_do_not_depend_on_the_batch(name: str) -> None:
    """With gradients pairs of different lengths share a bucket, padded."""
    encoder, decoder = made(name)
    targets = [[2, 20], [2, 23, 24, 25, 26, 27], [2], [2, 20, 29]]
    parameters = [*encoder.parameters(), *decoder.parameters()]
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    upstream = torch.randn(
        12, 16 if name == "small embeddings" else 32, generator=torch.Generator().manual_seed(1)
    )
    outputs = outputs_of(encoder, decoder, SOURCES, targets)
    together = torch.autograd.grad((outputs * upstream).sum(), parameters, allow_unused=True)
    singles: list[Tensor] = []
    for source, target in zip(SOURCES, targets, strict=True):
        singles.append(outputs_of(encoder, decoder, [source], [target]))
    apart = torch.autograd.grad((torch.cat(singles) * upstream).sum(), parameters, allow_unused=True)
    for one, other in zip(together, apart, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_equal_scores_under_the_causal_mask() -> None:
    """i have a dream: the first word has weight 1, then halves, thirds, and quarters; above the diagonal 0."""
    (weights,) = attention_weights(torch.zeros(4, 6), packed_of([[4, 5, 6, 7]]), 1, direction="before")
    expected = [[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4]
    torch.testing.assert_close(weights[0], torch.tensor(expected), atol=1e-7, rtol=0)
    random = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 9
    (weights,) = attention_weights(random, packed_of([[4, 5, 6, 7]]), 1, direction="before")
    assert (weights[0].triu(1) == 0).all()


@pytest.mark.parametrize("name", ["dot", "bilinear", "concat", "additive"])
def test_scores_are_their_formulas(name: str) -> None:
    """Compute the scores of a query q and a key k: q·k / sqrt(H), qᵀWk, w·[q; k], v·tanh(Wq + Uk)."""
    score = AttentionScore(CONFIG, torch.Generator().manual_seed(0), name)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(1, 3, 32, generator=generator), torch.randn(1, 5, 32, generator=generator)
    weights = {key: value.double() for key, value in score.state_dict().items()}
    expected = torch.empty(3, 5, dtype=torch.float64)
    for i, a in enumerate(q[0].double()):
        for j, b in enumerate(k[0].double()):
            match name:
                case "dot":
                    expected[i, j] = a @ b / 32**0.5
                case "bilinear":
                    expected[i, j] = a @ weights["key.weight"] @ b
                case "concat":
                    expected[i, j] = weights["vector.weight"][0] @ torch.cat([a, b])
                case _:
                    hidden = torch.tanh(weights["query.weight"] @ a + weights["key.weight"] @ b)
                    expected[i, j] = weights["vector.weight"][0] @ hidden
    torch.testing.assert_close(score.scores(q, k)[0].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["dot", "bilinear", "concat", "additive"])
def test_the_context_is_the_weighted_mean_of_the_source(name: str) -> None:
    score = AttentionScore(CONFIG, torch.Generator().manual_seed(0), name)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    targets, sources = np.array([2, 0, 3]), np.array([4, 1, 2])
    queries, states = torch.randn(5, 32, generator=generator), torch.randn(7, 32, generator=generator)
    context = score(queries, states, PairLayout(targets, sources, queries.device, equal_lengths_only=False))
    bounds = zip(pairwise([0, 2, 2, 5]), pairwise([0, 4, 5, 7]), strict=True)
    expected = [
        score.scores(queries[None, a:b], states[None, c:d])[0].softmax(-1) @ states[c:d]
        for (a, b), (c, d) in bounds
    ]
    torch.testing.assert_close(context, torch.cat(expected), atol=1e-6, rtol=1e-5)


def test_a_linear_concatenation_attends_alike_for_all_queries() -> None:
    score = AttentionScore(CONFIG, torch.Generator().manual_seed(0), "concat")
    q, k = torch.randn(2, 1, 6, 32, generator=torch.Generator().manual_seed(1))
    weights = score.scores(q, k)[0].softmax(-1)
    torch.testing.assert_close(weights, weights[:1].expand_as(weights), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "size"), [("transformer-base", 63_082_496), ("transformer-big", 214_245_376)]
)
def test_transformers_have_the_counted_parameters(name: str, size: int) -> None:
    """With biases and a vocabulary of 37,000 that encoder, decoder, and output share."""
    config = preset(name)
    with torch.device("meta"):
        encoder = build_encoder(config, torch.Generator())
        modules = encoder, TransformerDecoder(config, torch.Generator())
    assert sum(p.numel() for module in modules for p in module.parameters()) == size
    assert sum(term.size for term in count_parameters(config, ("decoder",))) == size


def test_embeddings_of_the_transformer() -> None:
    """sqrt(H) times the vector of the token, plus the sinusoids of its position; nothing is normalized."""
    config = preset("transformer-mini", **SIZES)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    packed = packed_of([[2, 7, 9], [3, 7]])
    table = encoder.embeddings.token.weight
    expected = table[packed.tokens] * 32**0.5 + sinusoidal_positions(40, 32)[packed.positions]
    torch.testing.assert_close(encoder.embeddings(packed), expected)
    assert not {name for name in encoder.state_dict() if "position" in name or "embeddings.norm" in name}
