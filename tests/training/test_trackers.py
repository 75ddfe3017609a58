"""Test the experiment trackers with small modules in place of wandb and mlflow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tiny_run
from bertsmith.errors import InputError
from bertsmith.training.callbacks import MetricLogger
from bertsmith.training.settings import TrainSettings
from bertsmith.training.trackers import Trackers


class FakeWandb(ModuleType):
    """Keeps the calls of wandb.init and of its runs."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.exit_codes: list[int] = []
        self.error: Exception | None = None

    def init(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return SimpleNamespace(id=arguments["id"] or "new", log=self.log, finish=self.finish)

    def log(self, values: dict[str, float], step: int) -> None:
        if self.error is not None:
            raise self.error
        self.logged.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


class FakeMlflowClient:
    """Keeps runs as MLflow's client does."""

    runs: dict[str, dict[str, Any]]
    experiments: dict[str, str]

    def get_experiment_by_name(self, name: str) -> Any:
        ids = self.experiments
        return SimpleNamespace(experiment_id=ids[name]) if name in ids else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, f"e{len(self.experiments)}")

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        run_id = f"r{len(self.runs)}"
        run = {
            "experiment": experiment_id,
            "name": run_name,
            "status": "RUNNING",
            "metrics": [],
            "params": {},
        }
        self.runs[run_id] = run
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status

    set_terminated = update_run

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.runs[run_id]["metrics"] += [(metric[0], metric[1], metric[3]) for metric in metrics]
        self.runs[run_id]["params"] |= dict(params)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> type[FakeMlflowClient]:
    FakeMlflowClient.runs, FakeMlflowClient.experiments = {}, {}
    entities, tracking = ModuleType("mlflow.entities"), ModuleType("mlflow.tracking")
    vars(entities).update(Metric=lambda *parts: parts, Param=lambda *parts: parts)
    vars(tracking)["MlflowClient"] = FakeMlflowClient
    for module in (ModuleType("mlflow"), entities, tracking):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return FakeMlflowClient


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("none", ()),
        ([], ()),
        (None, ()),
        ("wandb", ("wandb",)),
        ("wandb, mlflow", ("wandb", "mlflow")),
        (["mlflow", "tensorboard"], ("mlflow", "tensorboard")),
    ],
)
def test_names_in_settings(value: Any, names: tuple[str, ...]) -> None:
    settings = TrainSettings().changed({"report_to": value})
    assert settings.report_to == names
    assert TrainSettings.of(settings.model_dump(mode="json"), "settings") == settings


def test_an_unknown_tracker_is_an_error() -> None:
    with pytest.raises(InputError):
        TrainSettings().changed({"report_to": "wandb,comet"})


def test_a_resumed_run_continues_both_trackers(
    tmp_path: Path, wandb: FakeWandb, mlflow: type[FakeMlflowClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "birds")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "birds")
    shards, out = tiny_run.make_shards(tmp_path), tmp_path / "bert"
    more = ["train.report_to=wandb,mlflow", "train.eval_steps=2"]
    tiny_run.run(shards, out, "train.max_steps=2", *more)
    tiny_run.run(shards, out, "train.max_steps=4", *more, resume=True)

    first, second = wandb.calls
    assert (first["project"], first["name"], first["id"], first["resume"]) == ("birds", "bert", None, None)
    assert (second["id"], second["resume"]) == ("new", "allow")
    assert first["config"]["train.max_steps"] == 2
    assert wandb.exit_codes == [0, 0]
    assert [step for step, values in wandb.logged if "train/loss" in values] == [1, 2, 3, 4]
    assert [step for step, values in wandb.logged if "evaluation/mlm_loss" in values] == [2, 4]

    (run,) = mlflow.runs.values()
    assert (run["name"], run["status"], run["params"]["train.learning_rate"]) == ("bert", "FINISHED", "0.001")
    assert list(mlflow.experiments) == ["birds"]
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [(row["loss"], row["step"]) for row in log if row["kind"] == "train"]
    assert [(value, step) for name, value, step in run["metrics"] if name == "train/loss"] == losses


def test_a_tracker_that_fails_is_reported_once_and_the_training_goes_on(
    tmp_path: Path, wandb: FakeWandb, mlflow: type[FakeMlflowClient]
) -> None:
    wandb.error = ConnectionError("no network")
    with (
        tiny_run.logged() as messages,
        MetricLogger(
            tmp_path, title="", num_updates=3, step=0, trackers=("wandb", "mlflow")
        ) as metric_logger,
    ):
        for step in (1, 2, 3):
            metric_logger.record(step, "train", {"loss": 1.0})
    assert [message for message in messages if "no network" in message] == [
        message for message in messages if message.startswith("wandb")
    ]
    assert len([message for message in messages if "no network" in message]) == 1
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3
    (run,) = mlflow.runs.values()
    assert [step for name, _, step in run["metrics"] if name == "train/loss"] == [1, 2, 3]


def test_an_error_marks_the_run_as_unfinished(
    tmp_path: Path, wandb: FakeWandb, mlflow: type[FakeMlflowClient]
) -> None:
    logger = MetricLogger(tmp_path, title="", num_updates=1, step=0, trackers=("wandb", "mlflow"))
    with pytest.raises(KeyboardInterrupt), logger:
        raise KeyboardInterrupt
    assert wandb.exit_codes == [1]
    assert [run["status"] for run in mlflow.runs.values()] == ["KILLED"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError) as error:
        Trackers((name,), tmp_path, 0)
    assert (error.value.code, error.value.argument) == ("tracker_not_installed", "report_to")


def test_the_real_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    with tiny_run.logged() as messages:
        for step in (0, 2):  # started, and resumed
            trackers = Trackers(("wandb",), tmp_path, step)
            trackers.log(step + 1, {"train/loss": 1.0})
            trackers.close(is_finished=True)
    assert messages == []
    run_id = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{run_id}"))) in (1, 2)


def test_the_real_mlflow_with_a_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    (tmp_path / "settings.yaml").write_text("train:\n  seed: 3\n")
    with tiny_run.logged() as messages:
        for step in (0, 2):
            trackers = Trackers(("mlflow",), tmp_path, step)
            trackers.log(step + 1, {"train/loss": float(step)})
            trackers.close(is_finished=True)
    assert messages == []
    run_id = json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
    client = MlflowClient()
    assert [(m.step, m.value) for m in client.get_metric_history(run_id, "train/loss")] == [
        (1, 0.0),
        (3, 2.0),
    ]
    run = client.get_run(run_id)
    assert (run.info.status, run.data.params) == ("FINISHED", {"train.seed": "3"})
