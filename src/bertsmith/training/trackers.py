"""Experiment trackers that get the metrics of a run: TensorBoard, Weights & Biases, and MLflow, by their packages.

A resumed run continues the same run of the tracker, whose id is in trackers.json. The environment variables of the
trackers choose server and project: WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, …
"""

from __future__ import annotations

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.io import atomic
from bertsmith.io.jsonl import load_json
from bertsmith.settings import read_yaml

logger = logging.getLogger(__name__)

TRACKERS_FILE = "trackers.json"
_DEFAULT_PROJECT = "bertsmith"
_MAX_PARAMETERS = 100  # of MLflow in one call
_MAX_PARAMETER_LENGTH = 500  # characters of a value; servers before MLflow 2.10 accept no more


class Tracker(ABC):
    """A run of an experiment tracker; one process of a training run has it."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an update."""

    @abstractmethod
    def close(self, *, is_finished: bool) -> None:
        """End the recording; `is_finished` is False after an error or a signal."""


class TensorBoardTracker(Tracker):
    """Writes the events files of TensorBoard into RUN/tensorboard."""

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = step + 1 if step else None
        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=purge_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, is_finished: bool) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """Logs to Weights & Biases. It ignores updates that a resumed run repeats, whose metrics are the same."""

    def __init__(self, run: Path, step: int) -> None:
        import wandb

        run_id = _read_ids(run).get("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _DEFAULT_PROJECT),
            name=run.name,
            id=run_id,
            resume=None if run_id is None else "allow",
            config=_run_settings(run),
        )
        _save_id(run, "wandb", self._run.id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, *, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


class MlflowTracker(Tracker):
    """Logs to MLflow by its client, which leaves the active run of a notebook alone."""

    def __init__(self, run: Path, step: int) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric_type, self._client = Metric, MlflowClient()
        run_id = _read_ids(run).get("mlflow")
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
            self._run_id = run_id
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _DEFAULT_PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = (
            self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        )
        self._run_id = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        _save_id(run, "mlflow", self._run_id)
        parameters = [
            Param(name, str(value)[:_MAX_PARAMETER_LENGTH]) for name, value in _run_settings(run).items()
        ]
        for start in range(0, len(parameters), _MAX_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[start : start + _MAX_PARAMETERS])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        milliseconds = int(time.time() * 1000)
        values = [self._metric_type(name, value, milliseconds, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=values)

    def close(self, *, is_finished: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if is_finished else "KILLED")


_TRACKERS: dict[str, type[Any]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


class Trackers:
    """Several trackers, none of which can end the training: one that fails is reported once and then left out."""

    def __init__(self, names: Sequence[str], run: Path, step: int) -> None:
        """Open the trackers of a run.

        Args:
            names: Their names, as in `train.report_to`.
            run: The run folder.
            step: The updates before.

        Raises:
            InputError: The package of a tracker is not installed.
        """
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            try:
                self._trackers[name] = _TRACKERS[name](run, step)
            except ImportError:
                self.close(is_finished=False)
                message, hint = (
                    f"{name} is not installed",
                    f"pip install {name}, or change {option('report_to')}",
                )
                raise InputError("tracker_not_installed", message, argument="report_to", hint=hint) from None
            except Exception as error:  # trackers and the network raise many types
                _warn(name, error)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an update."""
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(step, metrics)
            except Exception as error:
                _warn(name, error)
                del self._trackers[name]

    def close(self, *, is_finished: bool) -> None:
        """End the recording."""
        for name, tracker in self._trackers.items():
            try:
                tracker.close(is_finished=is_finished)
            except Exception as error:
                _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    logger.warning("%s fails, and gets no more metrics; the training continues (%s)", name, error)


def _run_settings(run: Path) -> dict[str, Any]:
    """Return the settings of a run by dotted names; empty without settings.yaml."""
    file = run / "settings.yaml"
    values: dict[str, Any] = {}
    for name, value in (read_yaml(file) if file.is_file() else {}).items():
        values |= (
            {f"{name}.{key}": part for key, part in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return values


def _read_ids(run: Path) -> dict[str, str]:
    try:
        ids = load_json(atomic.read_file(run / TRACKERS_FILE).decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in ids.items()} if isinstance(ids, dict) else {}


def _save_id(run: Path, name: str, run_id: str) -> None:
    atomic.write_text(run / TRACKERS_FILE, json.dumps({**_read_ids(run), name: run_id}) + "\n")
