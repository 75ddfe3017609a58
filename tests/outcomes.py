"""What two runs must have in common to be the same run; for the tests of exact resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bertsmith.training import checkpoint, trainer


class Killed(BaseException):
    """Stands for a SIGKILL: no handler of ours catches it."""


@contextmanager
def killed_in(step: int) -> Iterator[None]:
    """Whatever trains in here dies before it makes this update."""
    update = trainer.update

    def killed(*arguments: Any) -> Any:
        if arguments[6] == step:
            raise Killed
        return update(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "update", killed)
        with pytest.raises(Killed):
            yield


def outcome(run: Path) -> dict[str, Any]:
    """All that must be equal: every file of the last checkpoint, the log, the model; no clock's reading."""
    last = run / "checkpoints" / checkpoint.newest_name(run / "checkpoints")  # type: ignore[operator]
    state = json.loads((last / "state.json").read_text())
    del state["seconds"]
    found: dict[str, Any] = {"state": state, "log": (run / "log.jsonl").read_bytes()}
    for file in sorted(last.glob("*.safetensors")):
        found[file.name] = file.read_bytes()
    found["model"] = (run / "model" / "model.safetensors").read_bytes()
    return found


def assert_same(run: Path, expected: dict[str, Any]) -> None:
    found = outcome(run)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
