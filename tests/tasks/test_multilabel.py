"""Any number of labels a text: files, the loss, thresholds, scores, from a file to a finished model."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.models.family import build_encoder
from bertsmith.tasks.batching import Item, Outputs, TokenSequence
from bertsmith.tasks.classification import TASK
from bertsmith.tasks.classification.data import ClassificationData, split_labels
from bertsmith.tasks.classification.model import LabelScores, MultilabelDecoder, MultilabelPrediction
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextExample

SETTINGS = ClassSettings(multi_label=True)
LABELS = ["anger", "fear", "joy"]
IDS = {label: i for i, label in enumerate(LABELS)}


def example(label: str | None, text: str = "kaba") -> TextExample:
    return TextExample(text, None, label, "file.csv:2")


def head(**settings: object) -> FittedTask:
    config = bs.ModelConfig(
        vocab_size=tiny_run.tokenizer().vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=64,
    )
    facts = {"labels": LABELS, "pairs": False, "separator": ","}
    return FittedTask.create(TASK, config, torch.Generator(), facts, SETTINGS.model_copy(update=settings))


def learned(examples: list[TextExample], settings: ClassSettings, names: list[str] | None = None) -> Any:
    return ClassificationData(settings, {}).fit_metadata(examples, names)


def rows(number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Each of three words brings its label with it."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        held = [i for i in range(3) if draw.random() < 0.5]
        words = [*draw.choices(tiny_run.WORDS[3:], k=draw.randint(1, 3)), *(tiny_run.WORDS[i] for i in held)]
        draw.shuffle(words)
        found.append((" ".join(words), "|".join(("joy", "fear", "anger")[i] for i in held)))
    return found


def test_labels_are_a_list_or_have_a_separator_between_them_or_there_are_none() -> None:
    assert split_labels(example("joy, fear"), ",") == ["joy", "fear"]
    assert split_labels(example('["joy", 3]'), ",") == ["joy", "3"]
    assert split_labels(example("[joy, fear]"), ",") == ["joy", "fear"]
    assert split_labels(example(1_000 * "["), ",") == [1_000 * "["]
    assert split_labels(example("joy, mostly|fear"), "|") == ["joy, mostly", "fear"]
    assert (
        split_labels(example(""), ",")
        == split_labels(example(None), ",")
        == split_labels(example("[]"), ",")
        == []
    )
    with pytest.raises(InputError) as caught:
        split_labels(example("joy,,fear"), ",")
    assert (caught.value.code, caught.value.location) == ("empty_label", "file.csv:2")


def test_files_of_every_form_hold_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\nkaba,"joy,fear"\nlode,\n')
    (tmp_path / "b.jsonl").write_text(
        '{"text": "kaba", "label": ["fear", "joy"]}\n{"text": "lode", "label": []}\n'
    )
    (tmp_path / "c.tsv").write_text("kaba\t2,1\tx\nlode\t\ty\n")
    tabs = ClassSettings(multi_label=True, header=False, text_column="1", label_column="2")
    for name, settings in (("a.csv", SETTINGS), ("b.jsonl", SETTINGS), ("c.tsv", tabs)):
        found = ClassificationData(settings, {}).read(tmp_path / name)
        facts = {"labels": LABELS, "numbered": True, "separator": ","}
        task = FittedTask.create(TASK, head().model.config, torch.Generator(), facts, settings)
        assert task.metrics.labels(found) == [("fear", "joy"), ()]


def test_what_cannot_be_learnt_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        learned([example("joy"), example("")], SETTINGS)
    assert (caught.value.code, caught.value.argument) == ("single_label", "label_column")
    with pytest.raises(InputError) as caught:
        learned([example("joy,hope")], SETTINGS, LABELS)
    assert (caught.value.code, caught.value.argument) == ("unknown_label", "label_column")
    settings = SETTINGS.model_copy(update={"class_weights": {"hope": 2.0}})
    with pytest.raises(InputError) as caught:
        learned([example("joy,fear")], settings)
    assert (caught.value.code, caught.value.argument) == ("unknown_label", "class_weights")


def test_the_loss_is_the_references(tmp_path: Path) -> None:
    """With weights for the labels that are there, too."""
    transformers = pytest.importorskip("transformers")
    encoder = build_encoder(head().model.config, torch.Generator().manual_seed(0)).eval()
    texts = [example("joy,fear", "kaba lode"), example("", "migi"), example("anger", "nufo pezu riba")]
    facts = {"labels": LABELS, "pairs": False, "separator": ",", "weights": [2.0, 0.5, 3.0]}
    for known in ({**facts, "weights": None}, facts):
        task = FittedTask.create(TASK, encoder.config, torch.Generator().manual_seed(1), known, SETTINGS)
        batch = task.model.eval().collate(task.encode(texts, tiny_run.tokenizer()))
        loss = task.model.loss(encoder, batch)
        assert loss.counts == {"task": 3}
        logits = torch.cat(list(task.model.outputs(encoder, batch)))
        wanted = torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 0, 0]])
        weights = None if known["weights"] is None else torch.tensor(known["weights"])
        theirs = torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, wanted)
        torch.testing.assert_close(loss.sums["task"] / 3, theirs)
    model = transformers.BertForSequenceClassification.config_class(
        problem_type="multi_label_classification", num_labels=3
    )
    assert model.problem_type == head().model.problem_type


def test_balanced_weights_are_how_many_times_rarer_a_label_is_than_its_absence() -> None:
    examples = [example(label) for label in ("joy", "joy,fear", "joy", "")]
    settings = SETTINGS.model_copy(update={"class_weights": "balanced"})
    found = learned(examples, settings)
    assert (found["labels"], found["weights"]) == (["fear", "joy"], [3.0, pytest.approx(1 / 3)])
    settings = SETTINGS.model_copy(update={"class_weights": {"joy": 5.0}})
    assert learned(examples, settings)["weights"] == [1.0, 5.0]


TRUTHS = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=8)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_it_begins_with_each_labels_share(family: str) -> None:
    """Where weights make up for how rare a label is, with a half."""
    examples = [example(label) for label in ("joy,joy", "joy,fear", "joy", "", "joy", "anger", "")]
    config = head().model.config.model_copy(update={"model_type": family})
    for settings, expected in (
        (SETTINGS, [1.5 / 8, 1.5 / 8, 4.5 / 8]),
        (SETTINGS.model_copy(update={"class_weights": "balanced"}), [0.5, 0.5, 0.5]),
    ):
        facts = learned(examples, settings)
        task = FittedTask.create(TASK, config, torch.Generator().manual_seed(0), facts, settings)
        task.model.init_bias(task.encode(examples, tiny_run.tokenizer()))
        shares = task.model.eval().heads["classifier"](torch.zeros(2, config.hidden_size)).sigmoid()
        near = {"abs": 0.1} if settings.class_weights == "balanced" else {"rel": 1e-5}
        for row in shares.tolist():
            assert row == pytest.approx(expected, **near)


def test_a_label_that_all_examples_have_leaves_all_finite() -> None:
    examples = [example("joy"), example("joy,fear")]
    settings = SETTINGS.model_copy(update={"class_weights": "balanced"})
    metadata = learned(examples, settings)
    task = FittedTask.create(TASK, head().model.config, torch.Generator(), metadata, settings)
    assert all(parameter.isfinite().all() for parameter in task.model.parameters())


@hypothesis.settings(max_examples=25)
@hypothesis.given(TRUTHS, st.data())
def test_scores_are_scikit_learns(truths: list[list[bool]], data: st.DataObject) -> None:
    from sklearn.metrics import f1_score

    guesses = [data.draw(st.lists(st.booleans(), min_size=3, max_size=3)) for _ in truths]
    examples = [
        example(",".join(label for label, held in zip(LABELS, row, strict=True) if held)) for row in truths
    ]
    predictions = [
        MultilabelPrediction(
            [label for label, held in zip(LABELS, row, strict=True) if held],
            LabelScores(IDS, np.array(row)),
            tokens=1,
            tokens_read=1,
        )
        for row in guesses
    ]
    numbers = head().metrics.compute(predictions, examples).values
    for name in ("macro", "micro"):
        expected = f1_score(np.array(truths), np.array(guesses), average=name, zero_division=0)
        assert numbers[f"{name}_f1"] == pytest.approx(expected)
    assert numbers["all_right"] == np.mean([a == b for a, b in zip(truths, guesses, strict=True)])


def logits_of(*shares: float) -> torch.Tensor:
    return torch.logit(torch.tensor([shares]))


@pytest.mark.parametrize(
    ("how", "expected"), [("half", [0.5] * 3), ("shared", [0.2] * 3), ("each", [0.2, 0.7, 0.1])]
)
def test_thresholds_are_in_the_middle_of_the_best_on_validation(how: str, expected: list[float]) -> None:
    task = head(thresholds=how)
    outputs = Outputs([logits_of(0.3, 0.9, 0.15), logits_of(0.1, 0.5, 0.05)])
    examples = [example("anger,fear,joy"), example("")]
    items = task.encode(examples, tiny_run.tokenizer())
    decoder = task.decoder
    assert isinstance(decoder, MultilabelDecoder)
    decoder.calibrate(outputs, items, examples)
    found = decoder.decode(outputs, items, examples)
    if how == "each":
        assert decoder.state["thresholds"] == pytest.approx(expected, abs=0.011)
        assert [answer.labels for answer in found] == [LABELS, []]
    elif how == "half":
        assert decoder.thresholds == expected
    else:
        assert len(set(decoder.state["thresholds"])) == 1
        assert task.metrics.compute(found, examples).values["macro_f1"] > 0.7


@pytest.fixture(scope="module")
def trained(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny model that knows which words bring which labels."""
    folder = tmp_path_factory.mktemp("many")
    settings = [
        "train.num_train_epochs=30",
        "train.learning_rate=5e-3",
        "train.threads=1",
        "train.report_to=none",
    ]
    return bs.finetune(
        "classify",
        base,
        folder / "run",
        train=tiny_run.table(folder / "train.csv", rows(240)),
        validation=tiny_run.table(folder / "validation.csv", rows(60, seed=1)),
        settings=["task.multi_label=true", "task.label_separator='|'", *settings],
    )


def test_it_is_learnt_saved_and_scored(trained: bs.Model, tmp_path: Path) -> None:
    again = bs.load(trained.path)
    assert type(again.task.decoder) is MultilabelDecoder
    assert again.labels == LABELS
    state = read_folder(trained.model_folder).record["decoder_state"]
    assert len(set(state["thresholds"])) == 1
    file = tiny_run.table(tmp_path / "test.csv", rows(60, seed=2))
    scores = again.evaluate(file)
    assert scores.macro_f1 > 0.9 > trained.report["baseline"]["macro_f1"]
    assert trained.report["decided_by"] == "macro_f1"
    answers = list(again.predict_file(file))
    for answer in answers:
        expected = [label for label in LABELS if answer["scores"][label] > state["thresholds"][0]]
        assert answer["labels"] == expected
    alone = again.predict([answers[3]["text"]])
    assert alone[0].labels == answers[3]["labels"]
    result = CliRunner().invoke(
        bertsmith,
        ["predict", str(trained.path), "--input", str(file), "--format", "csv"],
        catch_exceptions=False,
    )
    assert result.stdout.splitlines()[0].removeprefix("\ufeff") == "text,label,prediction,likeliest,score"


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
def test_no_answer_that_is_the_same_for_every_text_beats_the_baseline(
    trained: bs.Model, tmp_path: Path, share: float
) -> None:
    """Thresholds that are chosen on validation may come down until all labels are predicted: that is no skill."""
    draw = random.Random(0)
    drawn = [[label for label in LABELS if draw.random() < share] or LABELS[:1] for _ in range(40)]
    file = tiny_run.table(tmp_path / "some.csv", [("kaba lode", "|".join(some)) for some in drawn])
    examples = trained.task.data.read(file)
    metrics = trained.task.metrics
    baseline = metrics.baseline(examples, examples)
    for number in range(2 ** len(LABELS)):
        same = [label for i, label in enumerate(LABELS) if number >> i & 1]
        scores = LabelScores(IDS, np.full(len(LABELS), 0.5))
        answers = [MultilabelPrediction(same, scores, tokens=0, tokens_read=0)] * len(examples)
        found = metrics.compute(answers, examples)
        assert found.values["macro_f1"] <= baseline.values["macro_f1"]


def test_the_reference_opens_it_and_its_own_is_answered_with(trained: bs.Model, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForSequenceClassification.from_pretrained(trained.model_folder).eval()
    assert theirs.config.problem_type == "multi_label_classification"
    theirs.save_pretrained(tmp_path / "theirs")
    trained.tokenizer.save(tmp_path / "theirs")
    foreign = bs.load(tmp_path / "theirs", precision="fp32")
    assert type(foreign.task.decoder) is MultilabelDecoder
    texts = [text for text, _ in rows(8, seed=4)]
    own = bs.load(trained.path, precision="fp32")  # whichever it was trained in
    for one, other in zip(
        [one.to_dict() for one in own.predict(texts)],
        [one.to_dict() for one in foreign.predict(texts)],
        strict=True,
    ):
        assert list(one["scores"].values()) == pytest.approx(list(other["scores"].values()), abs=1e-5)
        assert other["labels"] == [label for label in LABELS if other["scores"][label] > 0.5]


def test_the_command_line_takes_it(trained: bs.Model, tmp_path: Path) -> None:
    train = tiny_run.table(tmp_path / "train.csv", rows(30))
    words = [
        "finetune",
        "classify",
        "--model",
        str(trained.path),
        "--train",
        str(train),
        "--validation-split",
        "0.3",
    ]
    words += [
        "--output-dir",
        str(tmp_path / "run"),
        "--multi-label",
        "--label-separator",
        "|",
        "--thresholds",
        "each",
    ]
    words += ["--class-weights", "balanced", "--steps", "2", "--threads", "1", "--json"]
    result = CliRunner().invoke(bertsmith, words, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["decided_by"] == "macro_f1"
    record = read_folder(tmp_path / "run" / "model").record
    assert len(record["metadata"]["weights"]) == len(record["decoder_state"]["thresholds"]) == 3


def test_scores_of_thousands_of_labels_take_little_memory() -> None:
    """A dict of the scores of one text takes fifty times as much."""
    labels = [f"label {i}" for i in range(4_000)]
    decoder = MultilabelDecoder({"labels": labels, "separator": ","}, ClassSettings(multi_label=True), {})
    logits = torch.randn(200, 1, len(labels))
    items = [
        Item(i, (TokenSequence(np.zeros(1, np.int32), np.zeros(1, np.uint8), 1, 1),)) for i in range(200)
    ]
    tracemalloc.start()
    predictions = decoder.decode(Outputs(list(logits)), items, [])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 20 * logits.numel()
    scores = predictions[0].to_dict()["scores"]
    assert list(scores) == labels
    assert scores == predictions[0].scores == dict(zip(labels, logits[0, 0].sigmoid().tolist(), strict=True))
    assert sorted(predictions[0].labels) == sorted(label for label, score in scores.items() if score > 0.5)
