"""Of every task: scores that are sums are its scores; a model beside itself cannot be told apart; an ensemble of
one is the model, and one of several answers with the mean of what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from task_files import FILES, OWN

SETTINGS = [
    "train.max_steps=3",
    "train.batch_size=6",
    "train.learning_rate=5e-3",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
]


class Pair(NamedTuple):
    """Two models of one task that differ in their seeds, and labelled examples that neither has seen."""

    a: bs.Model
    b: bs.Model
    data: Path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("base")
    return tiny_run.run(
        tiny_run.make_shards(folder), folder / "bert", "model.num_hidden_layers=1", "train.max_steps=1"
    )


@pytest.fixture(scope="module", params=list(FILES))
def pair(request: pytest.FixtureRequest, base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    suffix, write = FILES[request.param]
    files = [
        write(folder / f"{name}.{suffix}", seed) for seed, name in enumerate(("train", "validation", "test"))
    ]
    models = [
        bs.finetune(
            request.param.split()[0],
            base,
            folder / f"seed-{seed}",
            train=files[0],
            validation=files[1],
            settings=[*SETTINGS, *OWN.get(request.param, []), f"train.seed={seed}"],
        )
        for seed in (0, 1)
    ]
    return Pair(*models, files[2])


def answered(model: bs.Model, data: Path) -> tuple[list[Any], list[Any]]:
    examples = model.predictor.read(data)
    return list(model.predictor.predict(examples)), examples


def test_scores_that_are_sums_are_the_task_s_scores(pair: Pair) -> None:
    predictions, examples = answered(pair.a, pair.data)
    numbers = pair.a.task.metrics.compute(predictions, examples).values
    tallies = pair.a.task.metrics.sufficient_statistics(predictions, examples)
    if tallies is None:
        assert pair.a.task.primary_metric == "spearman"
        return
    assert len(tallies.per_example) == len(examples)
    for name, value in tallies.scores().items():
        assert value == pytest.approx(numbers[name], abs=1e-9), name


def test_a_model_beside_itself_cannot_be_told_apart(pair: Pair) -> None:
    report = bs.compare(pair.a, pair.a.path, pair.data, rounds=20)
    assert pair.a.task.primary_metric in report["scores"]
    for score in report["scores"].values():
        assert (score["difference"], score["p"]) == (0, 1)
    assert not report["told_apart"]
    json.dumps(report, allow_nan=False)


def test_the_scores_of_a_comparison_are_those_of_evaluate(pair: Pair) -> None:
    report = bs.compare(pair.a, pair.b, pair.data, rounds=20)
    one, other = pair.a.evaluate(pair.data).to_dict(), pair.b.evaluate(pair.data).to_dict()
    for name, score in report["scores"].items():
        assert score["a"] == pytest.approx(one[name])
        assert score["b"] == pytest.approx(other[name])
        assert score["difference"] == pytest.approx(other[name] - one[name], abs=1e-9)
        assert 0 < score["p"] <= 1


def test_an_ensemble_of_one_is_the_model(pair: Pair) -> None:
    alone = bs.ensemble(pair.a)
    assert alone.evaluate(pair.data) == pair.a.evaluate(pair.data)
    assert list(alone.predict_file(pair.data)) == list(pair.a.predict_file(pair.data))


def as_close(one: Any, other: Any) -> None:
    """Equal but for rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            as_close(one[name], other[name])
    elif isinstance(one, list) and one and isinstance(one[0], float):
        assert np.allclose(one, other, atol=2e-5)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, others in zip(one, other, strict=True):
            as_close(mine, others)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=2e-5)
    else:
        assert one == other


def test_a_model_twice_answers_as_once(pair: Pair) -> None:
    """What is averaged is what decoding takes: the mean of a thing with itself is the thing."""
    twice = bs.ensemble([pair.a, pair.a])
    decides = pair.a.task.primary_metric
    assert twice.evaluate(pair.data).to_dict()[decides] == pytest.approx(
        pair.a.evaluate(pair.data).to_dict()[decides], abs=2e-5
    )
    once, both = (list(one.predict_file(pair.data)) for one in (pair.a, twice))
    as_close([{k: v for k, v in a.items() if k != "vector"} for a in both], once)


def test_an_ensemble_s_scores_are_those_of_its_answers(pair: Pair) -> None:
    """`predict`, `evaluate` and `scores` have the same answers, which are not the first model's alone."""
    both = bs.ensemble([pair.a, str(pair.b.path)])
    found = both.scores(pair.data)
    evaluated = [dict(one.evaluate(pair.data).to_dict()) for one in (both, pair.a, pair.b)]
    counted = [one.to_dict() for one in (found.ensemble, *found.models)]
    for scores in evaluated:
        assert scores.pop("truncation")["limit"] == pair.a.folder.config.max_length
    assert evaluated == [{k: v for k, v in one.items() if k != "truncation"} for one in counted]
    _, examples = answered(pair.a, pair.data)
    answers = list(both.predictor.predict(examples))
    again = both.task.metrics.compute(answers, examples).values
    assert again == pytest.approx(dict(found.ensemble.values))
    first = list(pair.a.predictor.predict(examples))
    assert answers != first


def test_a_vote_comes_back_as_the_outcome(pair: Pair) -> None:
    """The outcome's own vote is the mean of the votes, whatever these are."""
    examples = pair.a.predictor.read(pair.data)
    items = pair.a.task.encode(examples, pair.a.tokenizer)
    outputs = [
        model.task.model.run(model.encoder, items, model.context).per_item for model in (pair.a, pair.b)
    ]  # both have one tokenizer
    decoder = pair.a.task.for_ensemble([pair.b.task]).decoder
    for one, other in zip(*outputs, strict=True):
        votes = [pair.a.task.decoder.ensemble_output(one), pair.b.task.decoder.ensemble_output(other)]
        found = decoder.ensemble_output(decoder.combine_outputs(votes))
        if pair.a.task.name == "embed":
            a, b = (vote @ vote.T for vote in votes)
            assert torch.allclose(found @ found.T, (a + b) / 2, atol=1e-5)
        elif pair.a.task.name == "translate":  # texts have no mean: the likelier one is chosen
            assert any(torch.equal(found[1:], vote[1:]) for vote in votes)
        else:
            assert torch.allclose(found, (votes[0] + votes[1]) / 2, atol=1e-6)
