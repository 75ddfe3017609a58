"""The same command gives the same model: neither clocks, nor load, nor cores, nor threads change it."""

from __future__ import annotations

import ctypes
import os
import random
import time
from pathlib import Path

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.inference.model import Model
from bertsmith.kernels import backend_selection
from bertsmith.settings import read_yaml

OPEN = ["train.threads=none", "train.precision=auto", "train.kernels=auto"]
RESOLVED = ("threads", "precision", "kernels", "device")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("shards"))


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def start_random_clocks(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Let clocks advance by random times, up to a minute a call, on a machine with a random load."""
    rng, now = random.Random(seed), 0.0

    def clock() -> float:
        nonlocal now
        now += rng.expovariate(1) ** 4
        return now

    for name in ("perf_counter", "monotonic", "process_time", "thread_time"):
        patch.setattr(time, name, clock)
    patch.setattr(os, "getloadavg", lambda: (100 * rng.random(),) * 3)


def test_clocks_and_load_change_nothing(shards: Shards, base: Model, tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(16)]
    for seed in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            start_random_clocks(patch, seed)
            tiny_run.run(shards, tmp_path / f"bert{seed}", "train.max_steps=3", *OPEN)
            bs.finetune(
                "classify",
                base,
                tmp_path / f"moods{seed}",
                train=rows,
                validation_split=0.25,
                settings=["train.max_steps=3", "train.batch_size=4", "train.report_to=none", *OPEN],
            )
    for name in ("bert", "moods"):
        first, second = tmp_path / f"{name}1", tmp_path / f"{name}2"
        assert weights(first) == weights(second)
        settings = [read_yaml(run / "settings.yaml") for run in (first, second)]
        assert settings[0] == settings[1]
        assert not {None, "auto"} & {settings[0]["train"][key] for key in RESOLVED}


def test_settings_repeat_a_run_on_other_cores(
    shards: Shards, base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_run.run(shards, tmp_path / "bert", "train.max_steps=2", *OPEN)
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(16)]
    options = {"train": rows, "validation_split": 0.25}
    few = ["train.max_steps=2", "train.batch_size=4", "train.report_to=none", *OPEN]
    bs.finetune("classify", base, tmp_path / "moods", **options, settings=few)

    monkeypatch.setattr(hardware, "available_cores", lambda: 3)
    monkeypatch.setattr(hardware, "choose_precision", lambda device: "bf16")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    bs.pretrain(shards, tmp_path / "bert-again", recipe=tmp_path / "bert" / "settings.yaml")
    recipe = tmp_path / "moods" / "settings.yaml"
    bs.finetune("classify", base, tmp_path / "moods-again", **options, recipe=recipe)
    for name in ("bert", "moods"):
        run, repeated = tmp_path / name, tmp_path / f"{name}-again"
        assert weights(run) == weights(repeated)
        assert read_yaml(run / "settings.yaml") == read_yaml(repeated / "settings.yaml")
        assert read_yaml(run / "settings.yaml")["train"]["threads"] == 1


@pytest.mark.skipif(
    not backend_selection.is_numba_available(), reason="Numba, the extra fast, is not installed here"
)
def test_threads_do_not_change_bf16_kernels(shards: Shards, tmp_path: Path) -> None:
    from bertsmith.kernels.cpu import matmul

    if matmul.GEMM_BF16 is None:
        pytest.skip("this processor has no bf16 products")
    settings = ["train.max_steps=2", "train.kernels=numba", "train.precision=bf16", "train.batch_size=8"]
    for threads in (1, 2, 3):
        tiny_run.run(shards, tmp_path / str(threads), *settings, f"train.threads={threads}")
    assert weights(tmp_path / "1") == weights(tmp_path / "2") == weights(tmp_path / "3")


def test_openmp_does_not_adapt_threads_to_the_load() -> None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "omp_set_dynamic"):
        pytest.skip("torch has no OpenMP here")
    library.omp_set_dynamic(1)
    assert hardware.configure_process(1) == torch.get_num_threads() == 1
    assert library.omp_get_dynamic() == 0
