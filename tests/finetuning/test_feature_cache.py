"""A frozen encoder: its states are the encoder's, from the disk; computed once, again where they are not whole."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, MachineError
from bertsmith.finetuning.model import CachedEncoder, remove_features
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.tasks.batching import TokenSequence

WORDS = tiny_run.WORDS
CONFIG = ModelConfig(
    model_type="bert",
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
PLACE = ComputeContext.create("cpu", "fp32")


def sequence(*ids: int, second: int = 0) -> TokenSequence:
    segments = np.array([0] * (len(ids) - second) + [1] * second, dtype=np.uint8)
    return TokenSequence(np.array(ids, dtype=np.int32), segments, len(ids) - 2, len(ids) - 2)


TEXTS = [sequence(2, 7, 8, 3), sequence(2, 9, 3), sequence(2, 9, 3, second=1), sequence(2, 7, 8, 3)]


def packed(*some: TokenSequence) -> Packed:
    return Packed.from_lists([one.ids.tolist() for one in some], [one.segments.tolist() for one in some])


def frozen(folder: Path, *layers: int, seed: int = 0) -> tuple[CachedEncoder, Encoder]:
    encoder = Encoder(CONFIG, torch.Generator().manual_seed(seed))  # with dropout, which must stay out
    return CachedEncoder(encoder, layers, PLACE, folder), encoder


def refused(*_: object) -> None:
    raise AssertionError("computed again")


def test_the_states_are_the_encoders_in_any_order(tmp_path: Path) -> None:
    made, encoder = frozen(tmp_path, 0, 2, 3)
    made.fill(TEXTS, "weights")
    made.train()
    batch = packed(TEXTS[1], TEXTS[3], TEXTS[2])
    wanted = encoder.eval().hidden_states(batch)
    torch.testing.assert_close(made(batch), wanted[-1])
    found = made.hidden_states(batch)
    for layer in (0, 2, 3):
        torch.testing.assert_close(found[layer], wanted[layer])
    assert not found[1].any()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == 4 * (4 + 3 + 3) * 3 * 16  # equal texts once
    assert not list(made.parameters())
    assert made.config is CONFIG


def test_states_on_disk_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = frozen(tmp_path, 3)
    made.fill(TEXTS, "weights")
    before = made(packed(*TEXTS))
    again, encoder = frozen(tmp_path, 3)

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "hidden_states", refused)
        again.fill(TEXTS[::-1], "weights")
        assert torch.equal(again(packed(*TEXTS)), before)
        for other in (lambda: again.fill(TEXTS[:2], "weights"), lambda: again.fill(TEXTS, "others")):
            with pytest.raises(AssertionError, match="computed again"):
                other()
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"torn")
    again.fill(TEXTS, "weights")
    torch.testing.assert_close(again(packed(*TEXTS)), encoder.eval()(packed(*TEXTS)))


def test_a_kill_while_they_are_computed_leaves_nothing_that_is_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = frozen(tmp_path, 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "hidden_states", killed)
        with pytest.raises(KeyboardInterrupt):
            made.fill(TEXTS, "weights")
    assert list(tmp_path.iterdir()) == []
    again, encoder = frozen(tmp_path, 3)
    again.fill(TEXTS, "weights")
    torch.testing.assert_close(again(packed(*TEXTS)), encoder.eval()(packed(*TEXTS)))


def test_a_finished_run_leaves_no_states(tmp_path: Path) -> None:
    made, _ = frozen(tmp_path / "features", 3)
    made.fill(TEXTS, "weights")
    remove_features(tmp_path / "features")
    assert list(tmp_path.iterdir()) == []
    remove_features(tmp_path / "features")


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = frozen(tmp_path, 3)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(MachineError) as caught:
            made.fill(TEXTS, "weights")
    assert caught.value.code == "disk_full"
    assert list(tmp_path.iterdir()) == []


# A run with a frozen encoder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("frozen")
    deep = ("model.num_hidden_layers=4", "train.max_steps=2")
    return tiny_run.run(tiny_run.make_shards(folder / "shards"), folder / "bert", *deep)


MOODS = [{"text": f"{a} {b}", "label": "glad" if a < "n" else "sad"} for a in WORDS for b in WORDS[:3]]
TAGS = [{"words": [a, b], "tags": ["B-X" if a < "n" else "O", "O"]} for a in WORDS for b in WORDS[:3]]
HOW: dict[str, Any] = {
    "settings": ["train.threads=1", "train.precision=fp32", "train.report_to=none"],
    "freeze_encoder": True,
    "learning_rate": 1e-2,
    "max_steps": 9,
    "eval_steps": 3,
    "save_steps": 2,
}


@pytest.mark.parametrize(
    ("task", "rows", "more"),
    [
        ("classify", MOODS, {}),
        ("tag", TAGS, {}),
        ("tag", TAGS, {"layers": "sum_last_four", "head": "bilstm", "decoder": "crf"}),
        ("tag", TAGS, {"layers": "concat_last_four"}),
        ("tag", TAGS, {"layers": "embeddings"}),
    ],
)
def test_the_encoder_stays_and_the_head_learns(
    base: bs.Model, tmp_path: Path, task: str, rows: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    made = bs.finetune(task, base, tmp_path / "run", train=rows, validation=rows, **HOW | more)
    mine, its = made.encoder.state_dict(), base.encoder.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)
    assert not (tmp_path / "run" / "features").exists()
    scores, report = made.evaluate(rows).to_dict(), made.report["validation"]
    decides = made.report["decided_by"]
    assert scores[decides] == pytest.approx(report[decides], abs=1e-6)
    if task == "tag":  # this base's [CLS] says nothing yet
        assert scores[decides] > made.report["baseline"][decides]
    weights = tmp_path / "run" / "checkpoints" / f"step-{made.report['steps']}" / "weights.safetensors"
    assert weights.stat().st_size < (tmp_path / "run" / "model" / "model.safetensors").stat().st_size


@pytest.mark.parametrize(("task", "rows"), [("classify", MOODS), ("tag", TAGS)])
def test_it_learns_as_with_all_layers_frozen_and_no_dropout(
    base: bs.Model, tmp_path: Path, task: str, rows: list[dict[str, Any]]
) -> None:
    off = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    known = bs.finetune(task, base, tmp_path / "a", train=rows, validation=rows, **HOW, **off)
    plain = HOW | off | {"freeze_encoder": False, "freeze_layers": 4}
    whole = bs.finetune(task, base, tmp_path / "b", train=rows, validation=rows, **plain)
    mine, its = known.task.model.state_dict(), whole.task.model.state_dict()
    for name in its:
        torch.testing.assert_close(mine[name], its[name], atol=1e-5, rtol=1e-4)


def test_a_killed_run_goes_on_to_the_bit(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"layers": "sum_all", "head": "bilstm"}
    whole = bs.finetune("tag", base, tmp_path / "whole", train=TAGS, validation=TAGS, **HOW, **more)

    class KilledError(Exception):
        pass

    import bertsmith.training.trainer as loop

    update = loop.train_step

    def killed(*given: Any, **named: Any) -> Any:
        if given[3] == 6:
            raise KilledError
        return update(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "train_step", killed)
        with pytest.raises(KilledError):
            bs.finetune("tag", base, tmp_path / "parts", train=TAGS, validation=TAGS, **HOW, **more)
    assert len(list((tmp_path / "parts" / "features").iterdir())) == 1
    shutil.copytree(tmp_path / "parts", tmp_path / "other")
    parts = bs.finetune("tag", base, tmp_path / "parts", train=TAGS, validation=TAGS, resume=True)
    mine, its = parts.task.model.state_dict(), whole.task.model.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)
    bs.finetune("tag", base, tmp_path / "parts", train=TAGS, validation=TAGS, resume=True)
    assert not (tmp_path / "parts" / "features").exists()
    once = HOW | {"max_steps": 1, "eval_steps": 1}
    bs.finetune("tag", base, tmp_path / "other", train=TAGS, validation=TAGS, overwrite=True, **once)


def test_runs_on_the_same_data_compute_the_states_once(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    hidden_states = Encoder.hidden_states

    def counted(encoder: Encoder, packed: Packed) -> list[torch.Tensor]:
        computed.append(packed)
        return hidden_states(encoder, packed)

    monkeypatch.setattr(Encoder, "hidden_states", counted)
    few = HOW | {"max_steps": 2, "eval_steps": 2}
    bs.finetune("classify", base, tmp_path / "alone", train=MOODS, validation=MOODS, **few)
    once = len(computed)
    computed.clear()
    grid = {"learning_rate": [1e-2, 1e-3]}
    few.pop("learning_rate")
    bs.finetune_repeatedly(
        "classify", base, tmp_path / "runs", train=MOODS, validation=MOODS, grid=grid, **few
    )
    assert len(computed) == once
    assert not (tmp_path / "runs" / "features").exists()
    bs.finetune(
        "classify", base, tmp_path / "a", train=MOODS, validation=MOODS, states=tmp_path / "states", **few
    )
    bs.finetune(
        "classify", base, tmp_path / "b", train=MOODS, validation=MOODS, states=tmp_path / "states", **few
    )
    assert len(computed) == 2 * once
    assert len(list((tmp_path / "states").iterdir())) == 1


def test_a_task_without_a_head_has_nothing_to_train(base: bs.Model, tmp_path: Path) -> None:
    pairs = [{"text": a, "second": b} for a, b in pairwise(WORDS)]
    with pytest.raises(InputError) as caught:
        bs.finetune("embed", base, tmp_path / "run", train=pairs, validation=pairs, freeze_encoder=True)
    assert caught.value.code == "nothing_to_train"
    assert caught.value.argument == "train.freeze_encoder"
    with pytest.raises(InputError) as caught:
        bs.finetune(
            "tag", base, tmp_path / "run", train=TAGS, validation=TAGS, freeze_encoder=True, unfreeze_every=2
        )
    assert caught.value.code == "frozen_with_layer_settings"
