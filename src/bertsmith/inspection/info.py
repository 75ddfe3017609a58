"""`info`: what a folder is (a run, a model, prepared data, a tokenizer), read from what stands in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.artifacts.locate import CONFIG
from bertsmith.artifacts.run_collection import OF_RUNS, runs_in
from bertsmith.corpus.manifest import MANIFEST
from bertsmith.corpus.shards import Shards
from bertsmith.device import Place
from bertsmith.errors import InputError
from bertsmith.finetuning.settings import FinetuneSettings, settings_type
from bertsmith.inference.model import load
from bertsmith.models.family import family, known_as, preset
from bertsmith.models.parameter_count import count_parameters
from bertsmith.objectives.objective import MODEL
from bertsmith.pretraining.settings import settings_of
from bertsmith.runs.run_folder import CHECKPOINTS, REPORT, SETTINGS, flat, holds_run
from bertsmith.settings import Settings, read_yaml
from bertsmith.tasks.task import TASKS, task_type
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.checkpoint import newest_state
from bertsmith.training.run_plan import Entry, read_plan

_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
_MODELS = "a run, a model folder or a published name"
_ALL = "a run, a model folder, prepared data, a tokenizer or a published name"
_CALLED = {
    "run": "a run",
    "runs": "a folder of runs",
    "model": "a model",
    "data": "prepared data",
    "tokenizer": "a tokenizer",
    "checkpoint": "a checkpoint of a run",
}


def info(name: str | Path | None = None, tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """What is behind a name: a run, a model folder, prepared data, a tokenizer, or a model's published name;
    without one, what this machine is and how it computes.

    Returns plain JSON: `kind`, one of these four words, "runs" for a folder of several, "preset" for a published
    name whose weights are not here, or "machine", and what there is to say. Of a run with a model, the model's own
    information too. InputError for anything else, with what may be meant.
    """
    if name is None:
        return _machine()
    path = Path(name)
    kind = kind_of(path)
    if kind == "runs":
        return _runs(path)
    if kind == "run":
        return _run(path)
    if kind == "data":
        shards = Shards.open(path)
        made = datetime.fromtimestamp((path / MANIFEST).stat().st_mtime, UTC)
        return {"kind": kind, **shards.info(), "made": made.isoformat(timespec="seconds")}
    if kind == "tokenizer":
        return {"kind": kind, "path": str(path), **Tokenizer.load(path).info()}
    if kind == "model" or not path.exists():
        try:
            return {"kind": "model", **load(name, tell=tell).info()}
        except InputError as error:
            if not path.exists() and (known := known_as(str(name))):
                return _preset(known)
            raise InputError(error.sentence, (error.remedy or "").replace(_MODELS, _ALL) or None) from None
    raise _refused(path, kind)


def _preset(name: str) -> dict[str, Any]:
    """A published model's sizes and parameters, without its weights; with the pooler, where its family has one."""
    config = preset(name)
    classes = family(config.model_type).architectures
    heads = ["pooler"] if frozenset({"encoder", "pooler"}) in classes else []
    terms = count_parameters(config, heads)
    return {
        "kind": "preset",
        "path": name,
        "architecture": classes[frozenset({"encoder", *heads})],
        "config": config.model_dump(mode="json"),
        "parameters": sum(term.size for term in terms),
        "terms": [{"term": t.term, "formula": t.formula, "parameters": t.size} for t in terms],
        "labels": None,
        "record": {},
    }


def _machine() -> dict[str, Any]:
    hardware.prepare_process()
    found = hardware.describe()
    place = Place.of()
    choice = hardware.choose_precision(place.device)
    return {
        "kind": "machine",
        "system": found.system,
        "processor": found.processor,
        "cores": found.cores,
        "memory_gib": round(found.memory / 2**30, 1),
        "instruction_sets": list(found.instruction_sets),
        "gpus": [{"name": name, "memory_gib": round(size / 2**30, 1)} for name, size in found.gpus],
        "runs_on": str(place.device),
        "precision": choice.precision,
        "reason": choice.reason,
    }


def kind_of(path: Path) -> str | None:
    """What stands in a folder, by the files that are in it; None for none of ours."""
    if not path.is_dir():
        return None
    if holds_run(path):
        return "run"
    if runs_in(path) is not None:
        return "runs"
    if (path / CONFIG).is_file() or (path / MODEL / CONFIG).is_file():
        return "model"
    if (path / MANIFEST).is_file():
        return "checkpoint" if (path / "state.json").is_file() else "data"
    return "tokenizer" if any((path / file).is_file() for file in _TOKENIZERS) else None


def _refused(path: Path, kind: str | None) -> InputError:
    """A sentence on what is none of these, and what is in it or around it that may be meant."""
    if not path.is_dir():
        return InputError(
            f"{path}: this is a file", "name a folder: a run, a model, prepared data, a tokenizer"
        )
    around = next((above for above in path.absolute().parents if holds_run(above)), None)
    if around is not None:
        what = _CALLED[kind] if kind else "a part of a run"
        return InputError(f"{path}: this is {what}, not a run itself", f"name the run: {around}")
    inside = [(below, found) for below in sorted(path.iterdir()) if (found := kind_of(below))]
    return InputError(
        f"{path}: this is no run, no model, no prepared data and no tokenizer",
        "in it: " + ", ".join(f"{below} ({_CALLED[found]})" for below, found in inside[:5])
        if inside
        else "there is nothing of these in it, either",
    )


def _runs(path: Path) -> dict[str, Any]:
    """Several runs of one task: their report; of those that have not all finished, how far each is."""
    report = _json(path / OF_RUNS)
    if report:
        return {"kind": "runs", "path": str(path), **report}
    rows = []
    for name in runs_in(path) or ():
        begun = (
            _run(path / name)["run"] if holds_run(path / name) else {"step": 0, "of": None, "finished": False}
        )
        rows.append({"run": name, **{key: begun[key] for key in ("step", "of", "finished")}})
    return {"kind": "runs", "path": str(path), "unfinished": rows}


def _run(path: Path) -> dict[str, Any]:
    """A run: how far it is, what it was asked, what it has reached, where its model is."""
    values = read_yaml(path / SETTINGS) if (path / SETTINGS).is_file() else {}
    state = newest_state(path / CHECKPOINTS)
    model = load(path, tell=lambda text: None) if (path / MODEL / CONFIG).is_file() else None
    record = model.folder.record if model is not None else {}
    report = _json(path / REPORT) if model is not None and model.unfinished is None else {}
    plan = read_plan(path, [])
    updates = train.get("max_steps") if isinstance(train := values.get("train"), dict) else None
    if plan:
        updates = plan[-1].updates
    step = state.step if state is not None else report.get("steps", 0)
    found = {
        "verb": "pretrain" if "objective" in values or "data" in values else _finetuned(record),
        "finished": bool(report) and step >= (updates or 0),
        "step": step,
        "of": updates,
        "seconds": report.get("seconds") or (round(state.seconds, 1) if state is not None else None),
        "tokens": state.tokens if state is not None else report.get("tokens"),
        "scores": report.get("held_out")
        or _numbers(report.get("dev"))
        or (state.evaluation if state else {}),
        "best_step": state.best_step if state is not None else None,
        "remarks": [*report.get("remarks", []), *_of_budgets([entry.budget for entry in plan])],
        "settings": _changed(path / SETTINGS, values, record) | _budget(plan),
        "model": None if model is None else str(model.model_folder),
        "model_of_step": (record.get("unfinished") or {}).get("step"),
    }
    document = {"kind": "run", "path": str(path), "run": found}
    return document if model is None else {**model.info(), **document}


def _budget(plan: Sequence[Entry]) -> dict[str, Any]:
    """The budget that a run was continued with, by the names of its settings; those of the others are none."""
    if not plan or plan[-1].budget == plan[0].budget:
        return {}
    names = {**plan[0].budget, **plan[-1].budget}
    return {f"train.{name}": plan[-1].budget.get(name) for name in names}


def _of_budgets(budgets: Sequence[Mapping[str, float]]) -> list[str]:
    """What settings.yaml, which is written when a run begins, does not say of its length."""
    if not budgets or budgets[-1] == budgets[0]:
        return []
    said = [", ".join(f"train.{name}={value:g}" for name, value in budget.items()) for budget in budgets]
    return [f"begun with {said[0]}, continued with {said[-1]}, in all"]


def _finetuned(record: dict[str, Any]) -> str:
    return f"finetune {record['task']}" if record.get("task") in TASKS else "finetune"


def _numbers(scores: Any) -> dict[str, float]:
    """The figures among a task's scores."""
    return {k: v for k, v in scores.items() if isinstance(v, float)} if isinstance(scores, dict) else {}


def _changed(file: Path, values: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The settings that are not the defaults, but for sizes, which are the model's."""
    kind: type[Settings] = FinetuneSettings
    if "objective" in values or "data" in values:
        kind = settings_of(file)
    elif record.get("task") in TASKS:
        kind = settings_type(task_type(record["task"]))
    defaults = flat(kind().model_dump(mode="json"))
    sizes = "model.vocab_size" in defaults
    return {
        name: value
        for name, value in flat(values).items()
        if value != defaults.get(name) and not (sizes and name.startswith("model."))
    }


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
