"""What several rooms' tests share: the way to the data sets beside the checkout, and one thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no defect of the code under test.
settings.register_profile("bertsmith", deadline=None)
settings.load_profile("bertsmith")


def pytest_configure() -> None:
    """Without a GPU, Triton interprets its programs. It reads that when it is first imported, by whomever."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def default_interrupt_handler() -> Iterator[None]:
    """Handle SIGINT in the tests and the processes that they start.

    A shell starts background jobs (`make test &`) with SIGINT ignored, and child processes inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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

    from bertsmith import hardware

    monkeypatch.setattr(hardware, "allowed_cores", lambda: 1)
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def kernels_are_waited_for() -> Iterator[None]:
    """Kernels are compiled first, so that short runs and answers compute alike each time."""
    from bertsmith.kernels import backend_selection
    from bertsmith.runs import run_folder

    backend_selection.for_training("auto", 128)  # a width from which on there are kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "_LONG", 0)
        patch.setattr(run_folder, "_LONG_MINUTES", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_figure_a_run() -> Iterator[None]:
    """Drawing all the figures of a run's report takes a second, which the hundreds of runs that are made here for
    other reasons have no use for. Tests of reports ask for `every_figure`."""
    from bertsmith.reports import run

    drawn = run.drawings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "drawings", lambda report: drawn(report)[:1])
        yield


@pytest.fixture(scope="module")
def every_figure() -> Iterator[None]:
    """All figures, as users have them."""
    from bertsmith.reports import run, run_figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "drawings", run_figures.drawings)
        yield
