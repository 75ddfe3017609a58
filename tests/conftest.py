"""What several rooms' tests share: the way to the data sets beside the checkout, and one thread."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no defect of the code under test.
settings.register_profile("bertsmith", deadline=None)
settings.load_profile("bertsmith")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of corpora, vocabularies and task sets; without it the tests that need it are skipped."""
    path = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    if not path.is_dir():
        pytest.skip("../shared/data is not here (corpora and vocabularies for tests)")
    return path.resolve()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny tensors on as many threads as a busy machine has cores take a hundred times as long."""
    import torch

    from bertsmith import machine

    monkeypatch.setattr(machine, "allowed_cores", lambda: 1)
    torch.set_num_threads(1)
