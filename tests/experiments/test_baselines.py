"""`baselines`: the models before BERT on one corpus, measured in the same way."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith as bs
import tiny_run
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.experiments.baseline_measures import Measurement
from bertsmith.experiments.baseline_models import held_out_chunks
from bertsmith.experiments.baselines_recipe import HISTORY, BaselinesRecipe, read_recipe
from bertsmith.experiments.baselines_report import make_report, write_report_page
from bertsmith.instances.epoch_plan import count_document_tokens
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.pretraining.settings import PretrainSettings

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "comparisons").glob("*.yaml"))
RECIPE = """
title: tiny history
models:
  unigram: {kind: ngram, settings: {order: 1}}
  bigram: {kind: ngram, settings: {order: 2}}
  counts: {kind: ngram, settings: {order: 3, smoothing: maximum_likelihood}}
  one-hot: {kind: one_hot}
  word2vec: {kind: word_vectors, settings: {dimensions: 8, min_count: 1, num_train_epochs: 1}}
  gpt: {preset: bert-tiny-uncased, settings: {objective.name: causal, model.causal: true}}
  bert: {preset: bert-tiny-uncased}
  static: {kind: static_vectors, base: bert, settings: {dimensions: 8}}
  embeddings: {kind: untrained, base: bert, settings: {keep_embeddings: true}}
  untrained: {kind: untrained, base: bert}
claims:
  - {better: bigram, worse: unigram, metric: perplexity, source: Shannon 1948}
  - {better: bert, worse: bigram, metric: no such metric}
published:
  - {model: GPT-2, metric: minimal pairs, value: 81.5, source: "Warstadt et al. 2020, table 3"}
"""
SETTINGS = [*(one for one in tiny_run.SETTINGS if not one.startswith("model.initializer"))]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Prepare documents in which each word follows the one before it in the vocabulary."""
    folder, words = tmp_path_factory.mktemp("shards"), tiny_run.WORDS
    sentences = [" ".join((words * 2)[i % 40 : i % 40 + 5 + i % 7]).capitalize() + "." for i in range(240)]
    documents = [" ".join(sentences[i::60]) for i in range(60)]
    file = write(folder / "corpus.txt", "\n\n".join(documents) + "\n")
    return prepare([file], tiny_run.tokenizer(), folder / "shards", workers=1)


@pytest.fixture
def arguments(tmp_path: Path, shards: Shards) -> dict[str, Any]:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    settings = {"train.max_steps": 2, "train.threads": 1}
    return {
        "corpus": shards,
        "output_dir": tmp_path / "out",
        "recipe": tmp_path / "recipe.yaml",
        "tasks": {"moods": {"train": str(rows), "validation": str(rows), "settings": settings}},
        "tokens": 400,
        "settings": [one for one in SETTINGS if not one.startswith("train.max_")],
        "jobs": 1,
    }


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def test_all_kinds_are_measured_alike(arguments: dict[str, Any], tmp_path: Path) -> None:
    similarities = [f"{a}\t{b}\t{i}\n" for i, (a, b) in enumerate(pairwise(tiny_run.WORDS[:6]))]
    arguments |= {
        "pairs": write(tmp_path / "pairs.csv", "good,bad\nkaba lode,lode kaba\nmi so,mi so\n"),
        "word_pairs": [write(tmp_path / "similar.tsv", "".join(similarities))],
        "few_labels": [2, 4],
    }
    report = bs.baselines(**arguments)
    perplexity = {name: metric.mean for name, metric in report.metrics["perplexity"].items()}
    assert list(perplexity) == ["unigram", "bigram", "counts", "gpt"]
    assert 1 < perplexity["bigram"] < perplexity["unigram"] / 2 < 30
    assert list(report.metrics["pseudo-perplexity"]) == ["bert"]
    wrong, right = (report.metrics[f"minimal pairs{end}"] for end in ("", ", ties right"))
    assert wrong["unigram"].mean == 0  # both pairs have the same words
    assert right["unigram"].mean == 1
    assert {"word2vec", "static", "bert"} <= set(report.metrics["similar Spearman"])
    assert report.metrics["similar coverage"]["one-hot"].mean == 1  # but all cosines are 0
    assert {"gpt", "bert", "embeddings", "untrained"} <= set(report.metrics["moods"])
    assert {"word2vec", "static", "one-hot"} <= set(report.metrics["moods frozen"])
    assert set(report.curves["moods by labels per class"]["bert"]) == {"2", "4"}
    sample = (
        (arguments["output_dir"] / "bert" / "0" / "moods-4.jsonl").read_text(encoding="utf-8").splitlines()
    )
    assert set(Counter(json.loads(row)["label"] for row in sample).values()) == {4}
    assert {"bigram", "gpt", "bert"} <= set(report.samples["The city of"])
    assert report.samples["The city of"]["bert"].startswith("[MASK]: ")
    (table,) = [table for table in report.tables() if table.title == "moods by labels per class"]
    row = next(row for row in table.rows if row[0] == "bert")
    assert table.heads == ["model", "2", "4"]
    assert row[1] == f"{100 * report.curves[table.title]['bert']['2'].mean:.1f}"
    assert [(c.better, c.verdict, c.source) for c in report.claims] == [
        ("bigram", "is undecided", "Shannon 1948")
    ]
    assert all(400 <= report.models[name].tokens < 700 for name in ("gpt", "bert", "bigram"))
    seconds = report.models["bigram"].seconds - report.models["unigram"].seconds
    assert report.claims[0].seconds == pytest.approx(seconds)
    assert {"TF-IDF + linear", "without looking at the text"} <= set(report.metrics["moods"])
    assert report.tables()[-1].rows[0][:3] == ["bigram", "unigram", "perplexity"]
    assert report.tables()[-2].rows == [["GPT-2", "81.5", "minimal pairs", "Warstadt et al. 2020, table 3"]]
    out = arguments["output_dir"]
    assert json.loads((out / "report.json").read_text()) == report.to_dict()
    page = (out / "report.html").read_text()
    assert "tiny history" in page
    plotted = [name for name in report.metrics if not name.endswith("coverage")]
    assert page.count("<svg") == len(plotted) + len(report.curves)
    bert = bs.load(out / "bert" / "0" / "pretrain")
    assert (bert.report["tokens"], bert.info()["parameters"]) == (
        report.models["bert"].tokens,
        report.models["bert"].parameters,
    )


@pytest.mark.parametrize("changes", [{}, {"data.validation_split": 0.4, "data.sentence_task": "none"}])
def test_held_out_text_is_that_of_the_runs(shards: Shards, changes: dict[str, Any]) -> None:
    data = PretrainSettings().changed(changes).data
    split = DocumentSplit.from_settings(shards, data)
    texts = [" ".join(sentences) for sentences in held_out_chunks(shards, data, 10**6)]
    ids = list(shards.tokenizer.encode_ids(texts))
    tokens = sum(count_document_tokens(shards, np.array([document])) for document in split.validation)
    assert sum(map(len, ids)) == tokens


def test_minutes_hold_word_vectors_too(arguments: dict[str, Any], tmp_path: Path) -> None:
    settings = "{dimensions: 8, min_count: 1, num_train_epochs: 10000000, subsampling: 0}"
    recipe = f"models: {{a: {{kind: word_vectors, settings: {settings}}}, b: {{preset: bert-tiny-uncased}}}}"
    arguments |= {"recipe": write(tmp_path / "vectors.yaml", recipe), "tokens": None, "tasks": None}
    report = bs.baselines(**arguments, minutes=0.1)
    assert report.budget == {"minutes": pytest.approx(0.05)}
    assert 0 < report.models["a"].seconds < 60  # 3, beside other work; all epochs take an hour
    assert report.models["a"].tokens > 10_000


def test_synthetic_tasks_are_measured_without_files(arguments: dict[str, Any], tmp_path: Path) -> None:
    recipe = """
    models:
      left: {preset: bert-tiny-uncased, settings: {objective.name: causal, model.causal: true}}
      one-hot: {kind: one_hot}
    measures: [agreement, cloze]
    agreement_gaps: [2]
    cloze_sides: [left, right, both]
    task_settings: {train.max_steps: 2, train.threads: 1}
    """
    arguments |= {"recipe": write(tmp_path / "synthetic.yaml", recipe), "tasks": None}
    report = bs.baselines(**arguments)
    assert {name: list(scores) for name, scores in report.metrics.items()} == {
        f"cloze, evidence {side}": ["left"] for side in ("left", "right", "both")
    }
    assert list(report.curves["agreement by distance"]["left"]) == ["2"]


def test_a_resumed_comparison_keeps_finished_models(arguments: dict[str, Any]) -> None:
    arguments |= {"models": ["unigram", "bert"]}
    first = bs.baselines(**arguments)
    files = sorted(arguments["output_dir"].rglob("*.safetensors"))
    times = [file.stat().st_mtime_ns for file in files]
    again = bs.baselines(**arguments, resume=True)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert again.to_dict() == first.to_dict()
    with pytest.raises(InputError) as caught:
        bs.baselines(**{**arguments, "tokens": 500}, resume=True)
    assert caught.value.code == "arguments_differ"
    with pytest.raises(InputError) as caught:
        bs.baselines(**arguments)
    assert caught.value.argument in ("output_dir", "resume")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"minutes": 1.0}, "two_budgets"),
        ({"models": ["lstm"]}, "model_unknown"),
        ({"models": []}, "models_missing"),
        ({"seeds": 0}, "number_too_small"),
        ({"tokens": 0}, "number_too_small"),
        ({"few_labels": [0]}, "number_too_small"),
        ({"few_labels": [10], "tasks": None}, "task_missing"),
        ({"few_labels": [2, 11]}, "too_few_examples"),
        ({"settings": ["train.seed=1"]}, "seed_set"),
        ({"settings": ["model.hidden_size=7"]}, "invalid_setting"),
        ({"recipe": "models: {a: {kind: ngram, settings: {order: 0}}}"}, "invalid_setting"),
        ({"recipe": "models: {a: {kind: word_vectors, settings: {sizes: 8}}}"}, "unknown_setting"),
        ({"pairs": "missing.csv"}, "not_found"),
        ({"word_pairs": ["missing.tsv"]}, "not_found"),
        ({"analogies": "missing.txt"}, "not_found"),
        ({"senses": "missing.csv"}, "not_found"),
    ],
)
def test_errors_come_before_any_training(
    arguments: dict[str, Any], change: dict[str, Any], code: str, tmp_path: Path
) -> None:
    if "recipe" in change:
        change = {"recipe": write(tmp_path / "other.yaml", change["recipe"])}
    with pytest.raises(InputError) as caught:
        bs.baselines(**{**arguments, **change})
    assert caught.value.code == code
    assert not list(Path(arguments["output_dir"]).rglob("pretrain"))


def test_few_labels_need_classes(arguments: dict[str, Any], tmp_path: Path) -> None:
    rows = str(write(tmp_path / "pairs.csv", "source,target\n" + "kaba lode,lode kaba\nmi so,so mi\n" * 4))
    tasks = {"reverse": {"verb": "translate", "train": rows, "validation": rows}}
    with pytest.raises(InputError) as caught:
        bs.baselines(**{**arguments, "few_labels": [2], "tasks": tasks})
    assert caught.value.code == "no_classes"


def test_a_corpus_that_cannot_be_split_leaves_nothing(arguments: dict[str, Any], tmp_path: Path) -> None:
    text = write(tmp_path / "text.txt", " ".join(tiny_run.WORDS * 30) + "\n")
    with pytest.raises(InputError) as caught:
        bs.baselines(**{**arguments, "corpus": text})
    assert caught.value.code == "too_few_documents"
    assert not arguments["output_dir"].exists()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("models: {}", "models_missing"),
        ("models: {a: {kind: static_vectors}}", "model_missing"),
        ("models: {a: {kind: ngram}, b: {kind: untrained, base: a}}", "model_not_pretrained"),
        ("models: {a: {}}\nclaims: [{better: a, worse: b, metric: x}]", "model_unknown"),
        ("models: {a: {settings: {train.seed: 1}}}", "seed_set"),
        ("models: {a: {kind: bigram}}", "invalid_setting"),
        ("models: {a b: {}, a-b: {}}", "folder_ambiguous"),
    ],
)
def test_recipes_with_errors(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        read_recipe(write(tmp_path / "recipe.yaml", text))
    assert caught.value.code == code
    assert str(tmp_path) in str(caught.value.location)


@pytest.mark.parametrize("recipe", [HISTORY, *RECIPES], ids=lambda file: file.stem)
def test_shipped_recipes(recipe: Path) -> None:
    table = read_recipe(recipe)
    presets = bs.presets()
    assert table.title
    assert all(model.preset in presets for model in table.models.values() if model.is_trained_by_pretrain)
    assert not any("," in name for name in table.models)  # which separates the names of --models
    assert len(RECIPES) == 10


def test_claims_need_several_seeds_and_no_chance(tmp_path: Path) -> None:
    recipe = BaselinesRecipe.of(
        {
            "models": {"a": {}, "b": {}},
            "claims": [
                {"better": "a", "worse": "b", "metric": "perplexity"},
                {"better": "a", "worse": "b", "metric": "score"},
            ],
        },
        "recipe",
    )

    def results(perplexities: list[float], scores: list[float]) -> dict[int, Measurement]:
        return {
            seed: Measurement(
                parameters=1,
                units="pieces",
                tokens=1,
                seconds=1,
                metrics={"perplexity": p, "score": s},
                curves={"score by labels per class": {"10": s}},
            )
            for seed, (p, s) in enumerate(zip(perplexities, scores, strict=True))
        }

    measurements = {
        "a": results([100, 101, 99.5], [0.50, 0.52, 0.51]),
        "b": results([120, 122, 119.0], [0.60, 0.61, 0.62]),
    }
    report = make_report(recipe, measurements, {"train.max_tokens": 1})
    assert [claim.verdict for claim in report.claims] == ["holds", "is reversed"]
    assert report.claims[0].gain == pytest.approx(np.mean([20, 21, 19.5]))
    gain_error = np.std([20, 21, 19.5], ddof=1) / math.sqrt(3)
    assert report.claims[0].margin == pytest.approx(4.302653 * gain_error)  # t of 2 degrees of freedom
    assert report.curves["score by labels per class"]["a"]["10"] == report.metrics["score"]["a"]
    write_report_page(tmp_path / "report.html", report)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<svg") == 3
    metric = report.metrics["perplexity"]["a"]
    error = np.std([100, 101, 99.5], ddof=1) / math.sqrt(3)
    assert metric.margin == pytest.approx(4.302653 * error)
    single = make_report(recipe, {name: {0: by_seed[0]} for name, by_seed in measurements.items()}, {})
    assert [claim.verdict for claim in single.claims] == ["is undecided"] * 2
    assert single.metrics["score"]["a"].margin is single.claims[0].margin is None
