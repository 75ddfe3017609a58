"""Of every task with a head, on an encoder that reads from left to right: a BiLSTM below the head (Devlin et al.
2019, table 5) is trained, saved, loaded, resumed, taught and counted, and its answers are those of its formula."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.tasks import batching
from bertsmith.tasks.base import TaskModel
from bertsmith.tasks.task_distillation import TaskDistillation
from family_harness import transformers
from run_equality import killed_in
from task_files import FILES, HEADED, OWN, STEPS

CAUSAL = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")
ONE_LAYER = "model.num_hidden_layers=1"
SETTINGS = ["task.head=bilstm", *STEPS]
ADDED = 12 * 32**2 + 16 * 32  # two layers of two directions: 4 gates · (32 · 16 + 16 · 16 + 2 · 16)


class Made(NamedTuple):
    """A model that was fine-tuned so, its files, and the messages of the run."""

    kind: str
    base: bs.Model
    model: bs.Model
    files: list[Path]
    messages: list[str]

    def again(self, out: Path, *settings: str, **more: Any) -> bs.Model:
        train, validation, _ = self.files
        own = [*SETTINGS, *OWN.get(self.kind, []), *settings]
        with tiny_run.logged(self.messages):
            return bs.finetune(
                self.kind.split()[0], self.base, out, train=train, validation=validation, settings=own, **more
            )

    def outputs(self, *, order: int = 1) -> list[Tensor]:
        """Of the third file's examples, in their order whatever the order that they are read in."""
        model, items = self.model.task.model, self.items()
        return list(model.run(self.model.encoder, items[::order], self.model.context).per_item)[::order]

    def items(self) -> list[Any]:
        examples = self.model.predictor.read(self.files[2])
        return self.model.task.encode(examples, self.model.tokenizer)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("base")
    return tiny_run.run(
        tiny_run.make_shards(folder), folder / "left", *CAUSAL, ONE_LAYER, "train.max_steps=2"
    )


@pytest.fixture(scope="module", params=HEADED)
def made(request: pytest.FixtureRequest, base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    suffix, write = FILES[request.param]
    files = [
        write(folder / f"{name}.{suffix}", seed) for seed, name in enumerate(("train", "validation", "test"))
    ]
    found = Made(request.param, base, base, files, [])
    return found._replace(model=found.again(folder / "run"))


def test_every_task_is_here_but_the_one_without_a_head() -> None:
    assert {kind.split()[0] for kind in FILES} - {kind.split()[0] for kind in HEADED} == {
        "embed",
        "translate",
    }


def test_it_is_saved_and_read_back(made: Made) -> None:
    again = bs.load(made.model.path / "model")
    assert "recurrent" in again.folder.parts
    assert again.folder.config.causal
    assert again.task.primary_metric == made.model.report["decided_by"]
    scores, report = again.evaluate(made.files[1]).to_dict(), made.model.report["validation"]
    assert {name: scores[name] for name in again.task.metrics.logged_metrics} == {
        name: report[name] for name in again.task.metrics.logged_metrics
    }


def test_its_parameters_are_logged(made: Made) -> None:
    assert f"BiLSTM below the head: {ADDED:,} more parameters (12H² + 16H)" in made.messages
    found = made.model.info()
    assert [t["parameters"] for t in found["terms"] if t["term"] == "BiLSTM"] == [ADDED]
    modules = (made.model.encoder, made.model.task.model)
    assert found["parameters"] == sum(p.numel() for module in modules for p in module.parameters())
    assert sum(p.numel() for p in made.model.task.model.features.parameters()) == ADDED


def lstm(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """[T, H] → [T, H], from the equations (Hochreiter and Schmidhuber 1997, with forget gates)."""
    for layer in (0, 1):
        sides = []
        for direction in ("", "_reverse"):
            w, u, b, c = (
                weights[f"lstm.{name}_l{layer}{direction}"]
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            state = cell = x.new_zeros(x.shape[1] // 2)
            found = []
            for row in x if not direction else x.flip(0):
                keep, forget, new, out = (w @ row + b + u @ state + c).chunk(4)
                order = (keep.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid())
                cell = order[1] * cell + order[0] * order[2]
                state = order[3] * cell.tanh()
                found.append(state)
            sides.append(torch.stack(found if not direction else found[::-1]))
        x = torch.cat(sides, 1)
    return x


def linear(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def of_sequence(weights: Mapping[str, Tensor], x: Tensor, _: Any) -> Tensor:
    """Pooler and classifier on the last state of each direction."""
    ends = torch.cat([x[-1, :16], x[0, 16:]])[None]
    return linear(weights, "classifier", linear(weights, "bert.pooler.dense", ends).tanh())


BY_HAND: dict[str, Callable[[Mapping[str, Tensor], Tensor, Any], Tensor]] = {
    "classify": of_sequence,
    "regress": of_sequence,
    "choose": lambda w, x, item: of_sequence(w, x, item)[:, 0],
    "tag": lambda w, x, _: linear(w, "classifier", x),
    "answer": lambda w, x, _: linear(w, "qa_outputs", x),
    "relate": lambda w, x, item: linear(w, "relater", torch.cat([x[row] for row in item.marker_indices]))[
        None
    ],
}


def test_outputs_are_those_of_the_references_encoder_and_the_formula(made: Made) -> None:
    """The encoder as transformers has it, its mask from left to right; all above it written out."""
    folder = made.model.model_folder
    other = transformers().AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    assert other.config.is_decoder
    weights, by_hand = load_file(folder / "model.safetensors"), BY_HAND[made.kind.split()[0]]
    for item, found in list(zip(made.items(), made.outputs(), strict=True))[:12]:
        rows = []
        for sequence in item.sequences:
            ids, segments = (torch.from_numpy(a).long()[None] for a in (sequence.ids, sequence.segments))
            with torch.no_grad():
                states = other(ids, token_type_ids=segments, use_cache=False).last_hidden_state[0]
            rows.append(by_hand(weights, lstm(weights, states), item))
        torch.testing.assert_close(found, torch.cat(rows), atol=1e-5, rtol=1e-5)


def test_answers_do_not_depend_on_what_is_read_together(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    together = made.outputs()
    monkeypatch.setattr(batching, "_MAX_TOKENS_CPU", 20)
    for few in (made.outputs(), made.outputs(order=-1)):
        for one, other in zip(together, few, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_encoder_sees_no_later_token_and_the_bilstm_does(made: Made) -> None:
    sequence = max((one for item in made.items() for one in item.sequences), key=lambda one: len(one.ids))
    ids, segments = sequence.ids.tolist(), sequence.segments.tolist()
    other = [*ids[:-2], ids[-2] + (1 if ids[-2] < 40 else -1), ids[-1]]
    with torch.inference_mode():
        encoder, features = made.model.encoder, made.model.task.model.features
        before, after = (Packed.from_lists([row], [segments]) for row in (ids, other))
        assert torch.equal(encoder(before)[:-2], encoder(after)[:-2])
        assert not torch.allclose(encoder(before)[-2], encoder(after)[-2])
        changed = (features(encoder, before) - features(encoder, after)).abs().amax(1)
        assert bool((changed > 0).all())


def test_a_killed_run_resumes_to_the_bit(made: Made, tmp_path: Path) -> None:
    with killed_in(3):
        made.again(tmp_path / "run")
    resumed = made.again(tmp_path / "run", resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (made.model.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_a_frozen_encoder_stays_and_all_above_it_learns(made: Made, tmp_path: Path) -> None:
    run = made.again(tmp_path / "run", "train.freeze_encoder=true", "train.save_total_limit=4")
    mine, its = run.encoder.state_dict(), made.base.encoder.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)
    first, later = (
        load_file(run.path / "checkpoints" / f"step-{step}" / "weights.safetensors") for step in (1, 3)
    )
    above = [name for name in later if ".recurrent.lstm." in name]
    assert len(above) == 16  # four tensors of each layer and direction
    assert not any(torch.equal(first[name], later[name]) for name in above)
    assert not any("blocks" in name for name in later)
    assert run.evaluate(made.files[1]).to_dict()[run.task.primary_metric] == pytest.approx(
        run.report["validation"][run.task.primary_metric], abs=1e-6
    )


def test_it_learns_from_a_teacher(made: Made) -> None:
    """A model that is its own teacher is nowhere apart; another student's BiLSTM gets the gradient."""
    task, encoder = made.model.task.model, made.model.encoder
    weights = {"temperature": 2.0, "soft_weight": 0.5, "task_weight": 0.5}
    batch = task.collate(made.items()[:6])

    def apart(student: TaskModel) -> Tensor:
        taught = TaskDistillation(student, encoder, copy.deepcopy(task), **weights).eval()
        return taught.loss(encoder, batch).sums["soft"]

    assert apart(task).item() == pytest.approx(0, abs=1e-6)
    other = copy.deepcopy(task)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-6)
    found = apart(other)
    assert found.item() > 1e-4
    found.backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in other.features.parameters())


AUTO = {
    "classify": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "choose": "AutoModelForMultipleChoice",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
}


def test_no_other_tool_takes_it_for_a_model_of_the_field(made: Made) -> None:
    """config.json names no class of the reference; one that is told to open it all the same says what it leaves
    out."""
    library, folder = transformers(), made.model.model_folder
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    assert name == made.model.folder.architecture
    assert not hasattr(library, name)
    if (kind := made.kind.split()[0]) in AUTO:
        _, said = getattr(library, AUTO[kind]).from_pretrained(folder, output_loading_info=True)
        assert len([key for key in said["unexpected_keys"] if key.startswith("lstm.")]) == 16


def changed(folder: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a model folder whose record is another."""
    shutil.copytree(folder, out)
    record = json.loads((out / "bertsmith.json").read_text())
    change(record)
    (out / "bertsmith.json").write_text(json.dumps(record))
    return out


def test_a_finished_model_keeps_its_head(made: Made, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        made.model.evaluate(made.files[1], head="linear")
    assert (caught.value.code, caught.value.argument) == ("fixed_setting_changed", "head")
    lost = changed(made.model.model_folder, tmp_path / "lost", lambda record: record["settings"].pop("head"))
    with pytest.raises(InputError) as caught:
        bs.load(lost).task  # noqa: B018
    assert caught.value.code == "weights_settings_mismatch"
    assert caught.value.code == "weights_settings_mismatch"
    assert caught.value.location == str(lost / "bertsmith.json")
    (tmp_path / "lost" / "bertsmith.json").unlink()
    with pytest.raises(InputError) as caught:
        bs.load(lost).task  # noqa: B018
    assert caught.value.code == "unsupported_architecture"


# Of the models that are there already


@pytest.fixture(scope="module")
def both_sides(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("both")
    return tiny_run.run(tiny_run.make_shards(folder), folder / "bert", ONE_LAYER, "train.max_steps=2")


def tuned(base: bs.Model, out: Path, messages: list[str], task: str = "classify", **how: Any) -> bs.Model:
    suffix, write = FILES[task]
    file = write(out.parent / f"{task}.{suffix}", 0)
    few = [one for one in SETTINGS if not one.startswith("task.")]
    with tiny_run.logged(messages):
        return bs.finetune(task, base, out, train=file, validation=file, settings=few, **how)


def test_a_pooler_is_taken_over_where_it_reads_the_same_states(both_sides: bs.Model, tmp_path: Path) -> None:
    still: dict[str, Any] = {"learning_rate": 1e-9, "max_steps": 1}

    def pooler(model: bs.Model) -> Tensor:
        return model.folder.weights()["pooler.linear.weight"]

    messages: list[list[str]] = [[], [], []]
    plain = tuned(both_sides, tmp_path / "plain", messages[0], **still)
    above = tuned(both_sides, tmp_path / "above", messages[1], head="bilstm", **still)
    later = tuned(above, tmp_path / "later", messages[2], **still)
    torch.testing.assert_close(pooler(plain), pooler(both_sides), atol=1e-6, rtol=0)
    assert not torch.allclose(pooler(above), pooler(both_sides), atol=1e-3)
    assert not torch.allclose(pooler(later), pooler(above), atol=1e-3)
    new = [any("the pooler of the base reads other states" in line for line in lines) for lines in messages]
    assert new == [False, True, True]
    assert above.folder.architecture == "BertForBiLstmSequenceClassification"
    assert plain.folder.architecture == later.folder.architecture == "BertForSequenceClassification"


def test_folders_of_earlier_versions_are_read_as_before(both_sides: bs.Model, tmp_path: Path) -> None:
    """Those of taggers had layers and head among the facts, too; others had no setting of a head."""
    tagger = tuned(both_sides, tmp_path / "tags", [], "tag", head="bilstm", layers="sum_all")
    early = changed(
        tagger.model_folder,
        tmp_path / "early",
        lambda record: record["metadata"].update({"layers": "sum_all", "head": "bilstm"}),
    )
    words = [["kaba", "lode"], ["mi"]]
    assert bs.load(early).predict(words) == tagger.predict(words)
    moods = tuned(both_sides, tmp_path / "moods", [])
    before = changed(moods.model_folder, tmp_path / "before", lambda record: record["settings"].pop("head"))
    assert bs.load(before).predict(["kaba lode"]) == moods.predict(["kaba lode"])


def test_another_head_is_refused_on_resume(both_sides: bs.Model, tmp_path: Path) -> None:
    run = tuned(both_sides, tmp_path / "run", []).path
    with pytest.raises(InputError) as caught:
        tuned(both_sides, run, [], resume=True, head="bilstm")
    assert caught.value.code == "setting_differs_from_run"


def test_an_odd_width_is_refused(tmp_path: Path) -> None:
    odd = ("model.hidden_size=33", "model.num_attention_heads=3", "train.max_steps=1")
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "bert", *odd)
    with pytest.raises(InputError) as caught:
        tuned(base, tmp_path / "run", [], head="bilstm")
    assert caught.value.code == "odd_hidden_size"
    assert not (tmp_path / "run").exists()


def test_a_first_loss_is_that_of_chance(base: bs.Model, tmp_path: Path) -> None:
    """The new layers say nothing at first."""
    made = tuned(base, tmp_path / "run", [], head="bilstm", max_steps=1, warmup_steps=0, logging_steps=1)
    assert isinstance(made.encoder, Encoder)
    first = json.loads((made.path / "log.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(math.log(3), abs=0.1)
