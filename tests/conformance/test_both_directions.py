"""Of every task with a head: a left-to-right model is fine-tuned beside one that reads the other way.

Both meet below the head (Devlin et al. 2019, section 5.1); it is saved, loaded, resumed and counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.models.feature_extraction import SecondEncoder
from bertsmith.packed import Packed
from bertsmith.tasks import batching
from family_harness import transformers
from run_equality import killed_in
from task_files import FILES, HEADED, OWN, STEPS

CAUSAL = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")


class Made(NamedTuple):
    """Both models, what was made of them, and its files."""

    kind: str
    left: bs.Model
    right: bs.Model
    files: list[Path]
    messages: list[str]

    def again(self, out: Path, *settings: str, **more: Any) -> bs.Model:
        train, validation, _ = self.files
        own = [f"task.second_encoder={self.right.path}", *STEPS, *OWN.get(self.kind, []), *settings]
        with tiny_run.logged(self.messages):
            return bs.finetune(
                self.kind.split()[0], self.left, out, train=train, validation=validation, settings=own, **more
            )


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> tuple[bs.Model, bs.Model]:
    folder = tmp_path_factory.mktemp("bases")
    shards = tiny_run.make_shards(folder)
    few = [*CAUSAL, "train.max_steps=2"]
    left = tiny_run.run(shards, folder / "left", *few)
    return left, tiny_run.run(shards, folder / "right", *few, "model.backwards=true", "train.seed=1")


@pytest.fixture(scope="module", params=HEADED)
def made(
    request: pytest.FixtureRequest, bases: tuple[bs.Model, bs.Model], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Made, bs.Model]:
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    suffix, write = FILES[request.param]
    files = [
        write(folder / f"{name}.{suffix}", seed) for seed, name in enumerate(("train", "validation", "test"))
    ]
    asked = Made(request.param, *bases, files, [])
    return asked, asked.again(folder / "run")


def outputs(model: bs.Model, file: Path) -> list[torch.Tensor]:
    examples = model.predictor.read(file)
    items = model.task.encode(examples, model.tokenizer)
    return list(model.task.model.run(model.encoder, items, model.context).per_item)


def test_it_is_saved_read_back_and_counted(made: tuple[Made, bs.Model]) -> None:
    asked, model = made
    again = bs.load(model.path / "model")
    assert "beside" in again.folder.parts
    scores, report = again.evaluate(asked.files[1]).to_dict(), model.report["validation"]
    assert {name: scores[name] for name in again.task.metrics.logged_metrics} == {
        name: report[name] for name in again.task.metrics.logged_metrics
    }
    modules = (model.encoder, model.task.model)
    assert model.info()["parameters"] == sum(p.numel() for one in modules for p in one.parameters())
    assert any("the other direction below the head" in line for line in asked.messages)
    with pytest.raises((ValueError, AttributeError)):
        getattr(transformers(), model.folder.architecture)


def test_answers_do_not_depend_on_what_is_read_together(
    made: tuple[Made, bs.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, model = made
    together = outputs(model, asked.files[2])
    monkeypatch.setattr(batching, "_MAX_TOKENS_CPU", 20)
    for one, other in zip(together, outputs(model, asked.files[2]), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_killed_run_resumes_to_the_bit(made: tuple[Made, bs.Model], tmp_path: Path) -> None:
    asked, model = made
    with killed_in(3):
        asked.again(tmp_path / "run")
    resumed = asked.again(tmp_path / "run", resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (model.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_both_models_are_trained_and_each_keeps_to_its_side(made: tuple[Made, bs.Model]) -> None:
    asked, model = made
    joined = model.task.model.features.beside
    assert isinstance(joined, SecondEncoder)
    for mine, base in ((model.encoder, asked.left.encoder), (joined.encoder, asked.right.encoder)):
        before, after = base.state_dict(), mine.state_dict()
        assert any(not torch.equal(before[name], after[name]) for name in before)
    ids = [2, 9, 12, 20, 31, 3]
    with torch.inference_mode():
        for encoder, place, kept in ((model.encoder, 4, slice(0, 4)), (joined.encoder, 1, slice(2, 6))):
            other = [*ids]
            other[place] = 40
            one, two = (encoder(Packed.from_lists([row], [[0] * 6])) for row in (ids, other))
            assert torch.equal(one[kept], two[kept])
            assert not torch.allclose(one, two)


def test_the_states_are_those_of_both_side_by_side(bases: tuple[bs.Model, bs.Model], tmp_path: Path) -> None:
    """Of a text the last token's of the one and the first token's of the other, each having seen all of it."""
    left, right = bases
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    few = [f"task.second_encoder={right.path}", *STEPS, "train.learning_rate=1e-10"]
    model = bs.finetune("classify", left, tmp_path / "run", train=rows, validation=rows, settings=few)
    features = model.task.model.features
    packed = Packed.from_lists([[2, 9, 12, 3], [2, 20, 3]], [[0] * 4, [0] * 3])
    with torch.inference_mode():
        own, other = left.encoder(packed), right.encoder(packed)
        weight, bias = features.beside.linear.weight, features.beside.linear.bias
        wanted = torch.cat([own[[3, 6]], other[[0, 4]]], 1) @ weight.T + bias
        torch.testing.assert_close(
            features.sequence_features(model.encoder, packed), wanted, atol=1e-4, rtol=0
        )
        whole = torch.cat([own, other], 1) @ weight.T + bias
        torch.testing.assert_close(features(model.encoder, packed), whole, atol=1e-4, rtol=0)


def test_a_vocabulary_is_extended_in_both_models(bases: tuple[bs.Model, bs.Model], tmp_path: Path) -> None:
    left, right = bases
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    settings = [f"task.second_encoder={right.path}", *STEPS]
    model = bs.finetune("classify", left, tmp_path / "run", train=rows, validation=rows, settings=settings)
    words = tmp_path / "words.txt"
    words.write_text("kabalode\n", encoding="utf-8")
    bs.extend_tokenizer((), tmp_path / "grown", model=model.path, word_list=words)
    grown = bs.load(tmp_path / "grown")
    own, other = grown.encoder, grown.task.model.features.beside.encoder
    assert own.embeddings.token.weight.shape == other.embeddings.token.weight.shape
    assert len(other.embeddings.token.weight) == len(tiny_run.TOKENS) + 1
    texts = ["kaba lode soba", "mide nugi"]
    assert grown.predict(texts) == model.predict(texts)


def test_no_other_direction_is_what_the_help_calls_none(
    bases: tuple[bs.Model, bs.Model], tmp_path: Path
) -> None:
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    for number, none in enumerate(("task.second_encoder=", "task.second_encoder=none")):
        model = bs.finetune(
            "classify",
            bases[0],
            tmp_path / f"run{number}",
            train=rows,
            validation=rows,
            settings=[*STEPS, none],
        )
        assert "beside" not in model.folder.parts


def test_what_does_not_fit_is_refused(bases: tuple[bs.Model, bs.Model], tmp_path: Path) -> None:
    left, right = bases
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    both = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "both", "train.max_steps=2")
    small = tiny_run.run(
        tiny_run.make_shards(tmp_path / "s"),
        tmp_path / "small",
        *CAUSAL,
        "model.backwards=true",
        "model.intermediate_size=32",
        "train.max_steps=2",
    )
    for base, beside, more, code in (
        (both, right, (), "second_encoder_not_causal"),
        (left, left, (), "second_encoder_differs"),
        (left, small, (), "second_encoder_differs"),
        (left, right, ("train.freeze_encoder=true",), "layers_of_two_encoders"),
        (left, right, ("train.layerwise_lr_decay=0.9",), "layers_of_two_encoders"),
        (left, right, ("task.head=bilstm",), "second_encoder_with_features"),
    ):
        settings = [f"task.second_encoder={beside.path}", *STEPS, *more]
        with pytest.raises(InputError) as caught:
            bs.finetune("classify", base, tmp_path / "run", train=rows, validation=rows, settings=settings)
        assert caught.value.code == code
        assert not (tmp_path / "run" / "model").exists()
