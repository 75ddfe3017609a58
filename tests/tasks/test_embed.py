"""Embedding: what files hold, what is compared with what, losses against their formulas, scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bertsmith as bs
import tiny_run
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.models.family import build_encoder
from bertsmith.tasks.embedding import TASK
from bertsmith.tasks.embedding.data import EmbeddingData, EmbeddingExample, detect_format, detect_same_label
from bertsmith.tasks.embedding.metrics import Corpus, TfIdf, labeled_metrics
from bertsmith.tasks.embedding.model import (
    EmbeddingItem,
    PairSimilarity,
    best_threshold,
    contrastive_loss,
    cosent_loss,
    excluded_passages,
    in_batch_loss,
)
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.settings import EmbedSettings

GRADED = "sentence1,sentence2,score\nkaba lode,kaba migi,4.5\nnude,pe,0\nso,tu,5\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def rows(path: Path, *found: dict[str, Any]) -> Path:
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found))


def data(**settings: Any) -> EmbeddingData:
    return EmbeddingData(EmbedSettings(**settings), {})


def read(path: Path, *, labeled: bool = True, **settings: Any) -> list[EmbeddingExample]:
    return data(**settings).read(path, labeled=labeled)


def task(matches: list[EmbeddingExample], **settings: Any) -> FittedTask:
    chosen = EmbedSettings(**settings)
    config = bs.ModelConfig(
        vocab_size=tiny_run.tokenizer().vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    metadata = data(**settings).fit_metadata(matches, None)
    return FittedTask.create(TASK, config, torch.Generator().manual_seed(0), metadata, chosen)


def pair(
    query: str, *positives: str, negatives: tuple[str, ...] = (), label: str | None = None
) -> EmbeddingExample:
    return EmbeddingExample(query, positives, negatives, label, "f.csv:2")


# What files hold


def test_a_table_of_pairs_with_scores(tmp_path: Path) -> None:
    found = read(write(tmp_path / "sts.csv", GRADED))
    assert found[0] == EmbeddingExample("kaba lode", ("kaba migi",), (), "4.5", f"{tmp_path}/sts.csv:2")
    assert detect_format(found, EmbedSettings()) == "graded"
    metadata = data().fit_metadata(found, None)
    assert metadata == {"data_format": "graded", "lowest_score": 0, "highest_score": 5}


def test_two_labels_are_same_and_different(tmp_path: Path) -> None:
    file = write(tmp_path / "p.tsv", "text\tsecond\tlabel\na\tb\t1\nc\td\t0\n")
    assert data().fit_metadata(read(file), None) == {"data_format": "labeled", "same_label": "1"}
    words = [pair("a", "b", label="match"), pair("c", "d", label="other")]
    with pytest.raises(InputError) as caught:
        detect_same_label(words, EmbedSettings())
    assert (caught.value.code, caught.value.argument) == ("same_label_missing", "same_label")
    assert detect_same_label(words, EmbedSettings(same_label="match")) == "match"
    with pytest.raises(InputError) as caught:
        detect_same_label(words, EmbedSettings(same_label="mach"))
    assert (caught.value.code, caught.value.argument) == ("unknown_label", "same_label")


def test_one_label_of_several_may_be_that_of_the_same() -> None:
    found = [pair("a", "b", label=label) for label in ("entailment", "neutral", "contradiction")]
    with pytest.raises(InputError) as caught:
        detect_format(found, EmbedSettings())
    assert caught.value.code == "same_label_missing"
    assert "same_label=entailment" in (caught.value.hint or "")
    assert detect_format(found, EmbedSettings(same_label="entailment")) == "labeled"


def test_pairs_without_labels_triples_and_queries(tmp_path: Path) -> None:
    found = read(write(tmp_path / "p.csv", "anchor,positive,negative\na,b,c\n"))
    assert found == [EmbeddingExample("a", ("b",), ("c",), None, f"{tmp_path}/p.csv:2")]
    found = read(write(tmp_path / "q.csv", "query,passage,other\na,b,c\n"))
    assert found == [EmbeddingExample("a", ("b",), (), None, f"{tmp_path}/q.csv:2")]
    file = rows(tmp_path / "q.jsonl", {"query": "q", "positives": ["a", "b", "a"], "negatives": "c"})
    assert read(file) == [EmbeddingExample("q", ("a", "b"), ("c",), None, f"{file}:1")]


def test_columns_of_other_names_and_no_header(tmp_path: Path) -> None:
    file = write(tmp_path / "p.csv", "0,a,b\n1,c,d\n")
    found = read(file, header=False, text_column="2", second_column="3", label_column="1")
    assert [(one.query, one.positives, one.label) for one in found] == [
        ("a", ("b",), "0"),
        ("c", ("d",), "1"),
    ]
    with pytest.raises(InputError) as caught:
        read(file)
    assert (caught.value.code, caught.value.location) == ("text_columns_unknown", f"{file}:1")
    with pytest.raises(InputError) as caught:
        read(file, text_column="x", second_column="a")
    assert str(caught.value).startswith(f"{file}:1: ")


def test_texts_to_predict_need_no_pair(tmp_path: Path) -> None:
    found = read(write(tmp_path / "t.txt", "a b\n\nc\n"), labeled=False)
    assert [one.texts for one in found] == [("a b",), ("",), ("c",)]
    assert found[1].is_empty
    found = data().from_inputs({"text": ["a\tb", "c"]}, ["text 1", "text 2"])
    assert [one.texts for one in found] == [("a", "b"), ("c",)]
    with pytest.raises(InputError) as caught:
        data().from_inputs({"text": ["a\tb\tc"]}, ["text 1"])
    assert (caught.value.code, caught.value.location) == ("too_many_tabs", "text 1")


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"query": "q", "positives": []}, "positive_missing"),
        ({"query": " ", "positives": ["a"]}, "empty_text"),
        ({"query": "q", "positives": [["a"]]}, "not_a_string"),
        ({"positives": ["a"]}, "field_missing"),
    ],
)
def test_bad_rows_have_a_code_and_a_location(tmp_path: Path, row: dict[str, Any], code: str) -> None:
    file = rows(tmp_path / "q.jsonl", {"query": "q", "positives": ["a"]}, row)
    with pytest.raises(InputError) as caught:
        read(file)
    assert (caught.value.code, caught.value.location) == (code, f"{file}:2")


@pytest.mark.parametrize(
    ("text", "settings", "code"),
    [
        (GRADED.replace("4.5", "four"), {}, "not_a_number"),
        (GRADED.replace("4.5", "nan"), {}, "empty_label"),
        (GRADED.replace("4.5", "1e308"), {}, "number_too_large"),
        (GRADED.replace("4.5", "-inf"), {}, "empty_label"),
        (GRADED, {"loss": "softmax"}, "loss_not_applicable"),
        (GRADED, {"loss": "contrastive"}, "loss_not_applicable"),
        ("text,second,label\na,b,1\nc,d,1\n", {}, "single_label"),
        ("text,second,label\na,b,\n", {}, "empty_label"),
        ("text,second\na,b\n", {"loss": "cosine"}, "loss_not_applicable"),
    ],
)
def test_what_cannot_be_learnt_from(tmp_path: Path, text: str, settings: dict[str, Any], code: str) -> None:
    file = write(tmp_path / "p.csv", text)
    with pytest.raises(InputError) as caught:
        data(**settings).fit_metadata(read(file, **settings), None)
    assert (caught.value.code, caught.value.location) == (code, f"{file}:2")


def test_validation_is_of_the_same_kind() -> None:
    with pytest.raises(InputError) as caught:
        data().check_validation([pair("a", "b")], {"data_format": "graded"})
    assert caught.value.code == "examples_differ_from_training"
    with pytest.raises(InputError) as caught:
        data().check_validation([pair("a", "b", label="x")], {"data_format": "graded"})
    assert caught.value.code == "not_a_number"


def test_a_split_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = write(tmp_path / "p.csv", GRADED)
    found = read(file)
    again = read(rows(tmp_path / "again.jsonl", *(data().to_row(one) for one in found)))
    assert [(m.texts, m.label) for m in again] == [(m.texts, m.label) for m in found]
    found = read(rows(tmp_path / "q.jsonl", {"query": "q", "positive": "a", "neg": ["b", "c"]}))
    again = read(rows(tmp_path / "again.jsonl", *(data().to_row(one) for one in found)))
    assert [m.texts for m in again] == [("q", "a", "b", "c")]


# What is compared


def test_an_epoch_takes_the_next_positive_and_negative() -> None:
    embed = task([pair("kaba", "lode", "migi", negatives=("pe", "nude", "so"))])
    (item,) = embed.encode(
        [pair("kaba", "lode", "migi", negatives=("pe", "nude", "so"))], tiny_run.tokenizer()
    )
    assert isinstance(item, EmbeddingItem)
    ids = [sequence.ids.tolist() for sequence in item.sequences]
    taken = [[s.ids.tolist() for s in item.in_epoch(epoch).sequences] for epoch in range(6)]
    assert taken == [[ids[0], ids[1 + epoch % 2], ids[3 + epoch % 3]] for epoch in range(6)]


def test_what_would_be_right_as_well_is_no_wrong_answer() -> None:
    """A passage that answers two queries of a batch, an equal query's passage, a positive that is another's
    negative."""
    found = [
        pair("kaba", "lode"),
        pair("migi", "lode", "nude"),
        pair("kaba", "pede"),
        pair("sode", "tuba", negatives=("nude",)),
    ]
    embed = task(found)
    items = [
        one.in_epoch(0) for one in embed.encode(found, tiny_run.tokenizer()) if isinstance(one, EmbeddingItem)
    ]
    assert excluded_passages(items).tolist() == [  # lode, lode, pede, tuba; nude
        [False, True, True, False, False],
        [True, False, False, False, True],
        [True, True, False, False, False],
        [False, False, False, False, False],
    ]


# Losses


def test_losses_are_their_formulas() -> None:
    cosines, wanted = torch.tensor([0.9, 0.1, -0.3]), torch.tensor([1.0, 0.0, 0.5])
    same = torch.tensor([1.0, 0.0, 0.0])
    assert float(contrastive_loss(cosines, same, 1.0)) == pytest.approx((0.1**2 + 0.1**2) / 2)
    order = [(i, j) for i in range(3) for j in range(3) if wanted[i] > wanted[j]]
    summed = sum(math.exp(5 * float(cosines[j] - cosines[i])) for i, j in order)
    assert float(cosent_loss(cosines, wanted, 5.0)) == pytest.approx(3 * math.log1p(summed), rel=1e-5)


def test_scores_that_are_all_equal_teach_no_order() -> None:
    cosines = torch.tensor([0.9, 0.1], requires_grad=True)
    loss = cosent_loss(cosines, torch.tensor([0.5, 0.5]), 20.0)
    loss.backward()
    assert (loss.item(), cosines.grad.tolist()) == (0.0, [0.0, 0.0])  # type: ignore[union-attr]


def test_in_batch_softmax_leaves_out_what_is_excluded() -> None:
    products = torch.tensor([[2.0, 5.0, 1.0], [0.0, 1.0, 3.0]])
    excluded = torch.tensor([[False, True, False], [False, False, False]])
    summed, right = in_batch_loss(products, excluded)
    wanted = F.cross_entropy(products[:1, [0, 2]], torch.tensor([0])) + F.cross_entropy(
        products[1:], torch.tensor([1])
    )
    assert float(summed) == pytest.approx(float(wanted))
    assert int(right) == 1


@pytest.mark.parametrize("settings", [{}, {"pooling": "cls", "normalize": False}])
def test_the_loss_of_a_batch_is_that_of_its_vectors(settings: dict[str, Any]) -> None:
    found = [pair("kaba", "lode migi"), pair("nude", "pede so", negatives=("tuba",)), pair("sogi", "loba")]
    embed = task(found, **settings)
    encoder = build_encoder(embed.model.config, torch.Generator().manual_seed(1)).eval()
    items = embed.encode(found, tiny_run.tokenizer())
    with torch.no_grad():
        loss = embed.model.loss(encoder, embed.model.collate(items))
    outputs = embed.model.run(encoder, items, ComputeContext.create("cpu", "fp32"))
    vectors = [torch.from_numpy(p.embeddings) for p in embed.decoder.decode(outputs, items, found)]
    queries = F.normalize(torch.stack([v[0] for v in vectors]), dim=1)
    others = F.normalize(torch.stack([*(v[1] for v in vectors), vectors[1][2]]), dim=1)
    products = 20 * queries @ others.T
    wanted = F.cross_entropy(products, torch.arange(3), reduction="sum")
    assert float(loss.sums["task"]) == pytest.approx(float(wanted), rel=1e-4)
    assert loss.counts["task"] == 3


def test_a_vector_does_not_depend_on_what_else_is_read() -> None:
    found = [pair("kaba lode migi nude pe"), pair("so"), pair("tuba ride"), pair("kaba " * 40)]
    embed = task([pair("a", "b")])
    encoder = build_encoder(embed.model.config, torch.Generator().manual_seed(1)).eval()
    place = ComputeContext.create("cpu", "fp32")

    def vectors(some: list[EmbeddingExample]) -> list[Any]:
        items = embed.encode(some, tiny_run.tokenizer())
        return [p.vector for p in embed.decoder.decode(embed.model.run(encoder, items, place), items, some)]

    together = vectors(found)
    for one, vector in zip(found, together, strict=True):
        np.testing.assert_allclose(vectors([one])[0], vector, atol=1e-6)


# Scores


def test_the_best_threshold_is_between_cosines() -> None:
    cosines = np.array([0.1, 0.4, 0.6, 0.9])
    same = np.array([False, True, False, True])
    assert best_threshold(cosines, np.array([False, False, True, True])) == pytest.approx(0.5)
    assert ((cosines > best_threshold(cosines, same)) == same).mean() == 0.75
    assert best_threshold(cosines, np.array([True] * 4)) == -1.0
    assert best_threshold(cosines, np.array([False] * 4)) == 1.0
    # no threshold parts equal cosines
    assert best_threshold(np.array([0.5, 0.5]), np.array([True, False])) in (-1.0, 1.0)


def test_scores_of_pairs_of_one_label_have_a_note() -> None:
    found = labeled_metrics(np.array([0.1, 0.2]), np.array([True, True]))
    assert (found.values["auc"], found.values["accuracy"]) == (0.0, 1.0)
    assert any("AUC say nothing" in note for note in found.notes)


def test_a_threshold_that_was_chosen_before_is_kept() -> None:
    cosines, same = np.array([0.1, 0.4, 0.6]), np.array([False, True, True])
    assert labeled_metrics(cosines, same).values["accuracy"] == 1
    found = labeled_metrics(cosines, same, 0.5)
    assert found.values["accuracy"] == pytest.approx(2 / 3)
    assert found.details["threshold"] == 0.5
    assert found.notes == []


def test_equal_queries_share_their_passages() -> None:
    search = Corpus.from_examples([pair("q", "a"), pair("p", "b", negatives=("n", "a")), pair("q", "c")])
    assert search.queries == ["q", "p"]
    assert search.passages == ["a", "b", "c", "n"]
    assert search.relevant == [{0, 2}, {1}]


def test_tfidf_finds_what_shares_words() -> None:
    search = Corpus.from_examples(
        [pair("the red house", "a red house"), pair("巴黎是首都", "首都在巴黎"), pair("x", "green")]
    )
    known = TfIdf([*search.queries, *search.passages])
    assert [ranking[0] for ranking in known.rankings(search.queries, search.passages, 10)[:2]] == [0, 1]
    assert known.rankings(search.queries, search.passages, 10)[2] == [0, 1, 2]  # nothing shared: their order
    assert known.cosines(["a red house"], ["a red house"])[0] == pytest.approx(1)
    assert TfIdf(["!!", ""]).cosines(["!!"], [""]).tolist() == [0]


def test_rankings_are_of_cosines_whatever_the_lengths() -> None:
    """A long vector is not nearer for its length."""
    found = [pair("kaba", "lode"), pair("migi", "nude")]
    embed = task(found, normalize=False)
    answers = [
        PairSimilarity(0.0, tokens=1, tokens_read=1, embeddings=np.array(vectors, dtype=np.float32))
        for vectors in ([[1, 0], [1, 0]], [[0, 1], [9, 10]])
    ]
    scores = embed.metrics.compute(answers, found)
    assert scores.values["recall@1"] == 1
    assert scores.details["passages"] == 2


# A run


FEW = {"max_steps": 2, "threads": 1, "report_to": "none"}


@pytest.mark.parametrize(
    ("text", "settings", "decided"),
    [
        (GRADED, {}, "spearman"),
        ("text,second,label\nkaba,lode,1\nmigi,nude,0\n", {"pooling": "max"}, "average_precision"),
        ("text,second\nkaba,lode\nmigi,nude\n", {}, "ndcg@10"),
        ("anchor,positive,negative\nkaba,lode,pede\nmigi,nude,loba\n", {"pooling": "cls"}, "ndcg@10"),
    ],
)
def test_each_kind_is_trained_evaluated_and_predicted_with(
    base: bs.Model, tmp_path: Path, text: str, settings: dict[str, Any], decided: str
) -> None:
    file = write(tmp_path / "p.csv", text)
    run = bs.finetune("embed", base, tmp_path / "run", train=file, validation=file, **settings, **FEW)
    assert run.report["decided_by"] == decided
    assert (run.report["baseline_name"], run.report["baseline_reads"]) == ("TF-IDF", True)
    if decided == "ndcg@10":  # what is asked is the query alone: the passage is the right answer
        assert all(list(one["asked"]) == ["text"] for one in run.report["answers"]["hardest"]["examples"])
    scores = bs.load(tmp_path / "run").evaluate(file).to_dict()
    assert scores[decided] == run.report["validation"][decided]
    (answer,) = [one.to_dict() for one in run.predict(["kaba lode"], ["kaba lode"])]
    assert answer["cosine"] == pytest.approx(1, abs=1e-6)
    (answer,) = [one.to_dict() for one in run.predict(["kaba lode"])]
    np.testing.assert_allclose(answer["vector"], run.embed(["kaba lode"])[0], atol=1e-6)
    if decided == "average_precision":
        threshold = run.folder.record["decoder_state"]["threshold"]
        assert threshold == run.report["validation"]["threshold"]
        assert [one["same"] for one in run.predict_file(file)] == [
            one["cosine"] > threshold for one in run.predict_file(file)
        ]
    found = list(run.predict_file(file))
    assert all(-1.001 < answer["cosine"] < 1.001 for answer in found)


def test_learning_brings_pairs_together(base: bs.Model, tmp_path: Path) -> None:
    words = tiny_run.WORDS
    lines = [f"{a} {b},{b} {a} {c}" for a, b, c in zip(words, words[5:], words[9:], strict=False)]
    file = write(tmp_path / "p.csv", "\n".join(["text,second", *lines]) + "\n")
    run = bs.finetune(
        "embed",
        base,
        tmp_path / "run",
        train=file,
        validation=file,
        num_train_epochs=20,
        learning_rate=3e-3,
        threads=1,
    )
    assert run.report["validation"]["recall@1"] > 0.8
    at_first = run.report["evaluations"][0]["recall@1"]
    assert at_first < run.report["validation"]["recall@1"]


def test_data_in_memory_and_a_held_out_part(base: bs.Model, tmp_path: Path) -> None:
    pairs = [
        (f"{a} {b}", f"{b} {a}", str(i % 5))
        for i, (a, b) in enumerate(zip(tiny_run.WORDS, tiny_run.WORDS[3:], strict=False))
    ]
    run = bs.finetune("embed", base, tmp_path / "run", train=pairs, validation_split=0.25, **FEW)
    assert run.report["decided_by"] == "spearman"
    assert len(read(tmp_path / "run" / "split" / "validation.jsonl")) == run.report["validation"]["examples"]
