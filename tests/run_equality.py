"""Compare two runs bit for bit, for the tests of exact resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bertsmith.training import checkpoint, trainer


class Killed(BaseException):
    """Stand-in for SIGKILL, which no handler of bertsmith catches."""


@contextmanager
def killed_in(step: int) -> Iterator[None]:
    """Kill the training run in this context before update number `step`."""
    update = trainer.train_step

    def killed(*arguments: Any) -> Any:
        if arguments[3] == step:
            raise Killed
        return update(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "train_step", killed)
        with pytest.raises(Killed):
            yield


def outcome(run: Path) -> dict[str, Any]:
    """Return what must be equal: the files of the last checkpoint, the log, and the model, without times."""
    folder = run / "checkpoints" / checkpoint.newest_name(run / "checkpoints")  # type: ignore[operator]
    state = json.loads((folder / "state.json").read_text())
    del state["seconds"]
    content: dict[str, Any] = {"state": state, "log": (run / "log.jsonl").read_bytes()}
    for file in sorted(folder.glob("*.safetensors")):
        content[file.name] = file.read_bytes()
    content["model"] = (run / "model" / "model.safetensors").read_bytes()
    return content


def assert_same(run: Path, expected: dict[str, Any]) -> None:
    content = outcome(run)
    assert content.keys() == expected.keys()
    assert [name for name in content if content[name] != expected[name]] == []
