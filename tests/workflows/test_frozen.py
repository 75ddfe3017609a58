"""A frozen encoder: its states are the encoder's, from the disk; computed once, again where they are not whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith.errors import MachineError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.place import Place
from bertsmith.tasks.items import Encoded
from bertsmith.workflows.frozen import Frozen

CONFIG = ModelConfig(
    model_type="bert",
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
PLACE = Place.of("cpu", "fp32")


def sequence(*ids: int, second: int = 0) -> Encoded:
    segments = np.array([0] * (len(ids) - second) + [1] * second, dtype=np.uint8)
    return Encoded(np.array(ids, dtype=np.int32), segments, len(ids) - 2, len(ids) - 2)


TEXTS = [sequence(2, 7, 8, 3), sequence(2, 9, 3), sequence(2, 9, 3, second=1), sequence(2, 7, 8, 3)]


def packed(*some: Encoded) -> Packed:
    return Packed.of_lists([one.ids.tolist() for one in some], [one.segments.tolist() for one in some])


def frozen(file: Path, *layers: int, seed: int = 0) -> tuple[Frozen, Encoder]:
    encoder = Encoder(CONFIG, torch.Generator().manual_seed(seed))  # with dropout, which must stay out
    return Frozen(encoder, layers, PLACE, file), encoder


def test_the_states_are_the_encoders_in_any_order(tmp_path: Path) -> None:
    made, encoder = frozen(tmp_path / "states.f32", 0, 2, 3)
    made.remember(TEXTS, "weights")
    made.train()
    batch = packed(TEXTS[1], TEXTS[3], TEXTS[2])
    wanted = encoder.eval().hidden_states(batch)
    torch.testing.assert_close(made(batch), wanted[-1])
    found = made.hidden_states(batch)
    for layer in (0, 2, 3):
        torch.testing.assert_close(found[layer], wanted[layer])
    assert not found[1].any()
    assert (tmp_path / "states.f32").stat().st_size == 4 * (4 + 3 + 3) * 3 * 16  # equal texts once
    assert not list(made.parameters())
    assert made.config is CONFIG


def test_states_on_disk_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = frozen(tmp_path / "states.f32", 3)
    made.remember(TEXTS, "weights")
    before = made(packed(*TEXTS))
    again, encoder = frozen(tmp_path / "states.f32", 3)

    def refused(*_: object) -> None:
        raise AssertionError("computed again")

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "hidden_states", refused)
        again.remember(TEXTS[::-1], "weights")
        assert torch.equal(again(packed(*TEXTS)), before)
        for other in (lambda: again.remember(TEXTS[:2], "weights"), lambda: again.remember(TEXTS, "others")):
            with pytest.raises(AssertionError, match="computed again"):
                other()
    (tmp_path / "states.f32").write_bytes(b"torn")
    again.remember(TEXTS, "weights")
    torch.testing.assert_close(again(packed(*TEXTS)), encoder.eval()(packed(*TEXTS)))


def test_a_kill_while_they_are_computed_leaves_nothing_that_is_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = frozen(tmp_path / "states.f32", 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "hidden_states", killed)
        with pytest.raises(KeyboardInterrupt):
            made.remember(TEXTS, "weights")
    again, encoder = frozen(tmp_path / "states.f32", 3)
    again.remember(TEXTS, "weights")
    torch.testing.assert_close(again(packed(*TEXTS)), encoder.eval()(packed(*TEXTS)))


def test_a_finished_run_leaves_no_states(tmp_path: Path) -> None:
    made, _ = frozen(tmp_path / "features" / "states.f32", 3)
    made.remember(TEXTS, "weights")
    made.forget()
    assert list((tmp_path / "features").iterdir()) == []
    made.forget()


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = frozen(tmp_path / "states.f32", 3)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(MachineError, match=r"has no room for 0\.0 GB of hidden states"):
            made.remember(TEXTS, "weights")
    assert list(tmp_path.iterdir()) == []
