"""Fixtures of all tests: the shared data, one thread, and fast reports."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from bertsmith.inference.model import Model

# Examples may take long on a machine under load. `pytest --hypothesis-profile=thorough` tries more of them.
settings.register_profile("fast", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile("fast")


def pytest_configure() -> None:
    """Let Triton interpret its kernels without a GPU; it reads the variable when it is first imported."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the folders of the longest files, so that no worker ends with one of them alone."""
    longest = ("exactness", "experiments", "docs", "demo", "conformance", "style")
    items.sort(key=lambda item: item.path.parent.name not in longest)


@pytest.fixture(scope="session", autouse=True)
def default_interrupt_handler() -> Iterator[None]:
    """Handle SIGINT in the tests and the processes that they start.

    A shell starts background jobs (`make test &`) with SIGINT ignored, and child processes inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def readable_messages() -> Iterator[None]:
    """Fail where a logged message has a reference to an option, which only errors replace by its name."""

    class Check(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert "\x02[" not in record.getMessage()

    handler = Check()
    logging.getLogger("bertsmith").addHandler(handler)
    yield
    logging.getLogger("bertsmith").removeHandler(handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of corpora, vocabularies, and task data; skip the test if it is missing."""
    path = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    if not path.is_dir():
        pytest.skip("../shared/data is missing (corpora and vocabularies for tests)")
    return path.resolve()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a tiny pre-trained model; tests must not change its folder."""
    import tiny_run

    folder = tmp_path_factory.mktemp("base")
    return tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=2")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute on one thread: tiny tensors on all cores of a machine under load take a hundred times as long."""
    import torch

    from bertsmith import hardware

    monkeypatch.setattr(hardware, "available_cores", lambda: 1)
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> Iterator[None]:
    """Compile kernels before the tests, so that short runs compute the same each time."""
    from bertsmith import device
    from bertsmith.kernels import backend_selection

    backend_selection.select_training_backend("auto", 128)  # a hidden size that kernels support
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "LONG_RUN_UPDATES", 0)
        patch.setattr(device, "LONG_RUN_MINUTES", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_figures() -> Iterator[Callable[..., Any]]:
    """Draw no figures of reports, which saves a second in each of hundreds of runs; yield what draws them.

    Tests of reports use the fixture `every_figure`.
    """
    from bertsmith.reports import run

    report_figures = run.report_figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "report_figures", lambda report: iter(()))
        yield report_figures


@pytest.fixture(scope="module")
def every_figure(no_figures: Callable[..., Any]) -> Iterator[None]:
    """Draw all figures of reports."""
    from bertsmith.reports import run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "report_figures", no_figures)
        yield
