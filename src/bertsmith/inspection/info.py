"""`info`: describe a folder (run, model, prepared data, tokenizer), a published model, or this machine.

`info --diff`: compare two models' settings, families, training settings, and parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.artifacts.folder import read_folder
from bertsmith.artifacts.locate import (
    CONFIG_FILE,
    RUNS_REPORT_FILE,
    check_has_layers,
    locate,
    read_report,
    run_names,
)
from bertsmith.corpus.manifest import MANIFEST_FILE
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.finetuning.settings import FinetuneSettings, settings_type
from bertsmith.inference.model import load
from bertsmith.instances.settings import DataSettings
from bertsmith.io.compression import check_name
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import Family, get_family, preset, resolve_preset, similar_presets
from bertsmith.models.parameter_count import count_parameters, encoder_parameter_terms
from bertsmith.objectives.objective import MODEL
from bertsmith.pretraining.resolve_settings import settings_type_of_file
from bertsmith.runs.run_folder import CHECKPOINTS, REPORT, SETTINGS, holds_run
from bertsmith.settings import Settings, read_yaml
from bertsmith.tasks.registry import TASKS, get_task
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.checkpoint import newest_state
from bertsmith.training.run_plan import PlanEntry, read_plan
from bertsmith.training.settings import TrainSettings

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
_PRETRAINING_DATA = (
    "instances",
    "sentence_task",
    "masking",
    "replacement_probabilities",
    "span_length_distribution",
    "max_span_length",
)
_HINT = "name a run, a model folder, prepared data, a tokenizer, or a published model"


def info(name: str | Path | None = None) -> dict[str, Any]:
    """Describe a run, a model folder, prepared data, a tokenizer, a published model, or this machine.

    Args:
        name: The folder or published name; None describes this machine.

    Returns:
        `kind` ("run", "runs" for a folder of several runs, "model", "data", "tokenizer", "preset" for a published
        name whose weights are not on this machine, or "machine"), and details that depend on the kind. The details
        of a run include those of its model.

    Raises:
        InputError: The name is none of these.
    """
    if name is None:
        return _describe_machine()
    path = Path(name)
    match kind := kind_of(path):
        case "runs":
            return _describe_runs(path)
        case "run":
            return _describe_run(path)
        case "data":
            modified = datetime.fromtimestamp((path / MANIFEST_FILE).stat().st_mtime, UTC)
            return {"kind": kind, **Shards.open(path).info(), "made": modified.isoformat(timespec="seconds")}
        case "tokenizer":
            return {"kind": kind, "path": str(path), **Tokenizer.load(path).info()}
    if kind != "model" and path.exists():
        check_has_layers(path)
        raise _not_describable(path)
    try:
        return {"kind": "model", **load(name).info()}
    except InputError:
        if kind is None and (preset_name := resolve_preset(str(name))):
            return _describe_preset(preset_name)
        raise


def _describe_preset(name: str) -> dict[str, Any]:
    """Describe a published model without its weights, with the pooler if its family has one."""
    config = preset(name)
    architectures = get_family(config.model_type).architectures
    heads = ["pooler"] if frozenset({"encoder", "pooler"}) in architectures else []
    terms = count_parameters(config, heads)
    return {
        "kind": "preset",
        "path": name,
        "architecture": architectures[frozenset({"encoder", *heads})],
        "config": config.model_dump(mode="json"),
        "parameters": sum(term.size for term in terms),
        "terms": [{"term": t.name, "formula": t.formula, "parameters": t.size} for t in terms],
        "labels": None,
        "record": {},
    }


def _describe_machine() -> dict[str, Any]:
    hardware.configure_process()
    context = ComputeContext.create()
    machine = {"kind": "machine", **hardware.describe()}
    return {**machine, "runs_on": str(context.device), "precision": context.precision}


def kind_of(path: Path) -> str | None:
    """Return the kind of a folder by its files ("run", "runs", "model", "data", …); None for others."""
    check_name(path)
    if not path.is_dir():
        return None
    if holds_run(path):
        return "run"
    if run_names(path) is not None:
        return "runs"
    if (path / CONFIG_FILE).is_file() or (path / MODEL / CONFIG_FILE).is_file():
        return "model"
    if (path / MANIFEST_FILE).is_file():
        return "checkpoint" if (path / "state.json").is_file() else "data"
    return "tokenizer" if any((path / file).is_file() for file in _TOKENIZER_FILES) else None


def _not_describable(path: Path) -> InputError:
    """Return the error for a path that `info` cannot describe, which names what is beside it."""
    folders = [*path.absolute().parents[:2], *(sorted(path.iterdir()) if path.is_dir() else ())]
    others = [str(folder) for folder in folders if kind_of(folder) not in (None, "checkpoint")]
    message = "this is no run, no model, no prepared data, and no tokenizer"
    hint = f"name one of these: {', '.join(others[:5])}" if others else _HINT
    return InputError("not_describable", message, location=path, hint=hint)


def _describe_runs(path: Path) -> dict[str, Any]:
    """Return the report of several runs of a task, or the progress of each if some are unfinished."""
    report = read_report(path / RUNS_REPORT_FILE)
    if report:
        return {"kind": "runs", "path": str(path), **report}
    rows = []
    for name in run_names(path) or ():
        run = {"step": 0, "of": None, "finished": False}
        if holds_run(path / name):
            run = _describe_run(path / name)["run"]
        rows.append({"run": name, **{key: run[key] for key in ("step", "of", "finished")}})
    return {"kind": "runs", "path": str(path), "unfinished": rows}


def _describe_run(path: Path) -> dict[str, Any]:
    """Return the progress, settings, scores, and model of a run."""
    settings_file = path / SETTINGS
    values = read_yaml(settings_file) if settings_file.is_file() else {}
    state = newest_state(path / CHECKPOINTS)
    model = load(path) if (path / MODEL / CONFIG_FILE).is_file() else None
    record = model.folder.record if model is not None else {}
    report = read_report(path / REPORT) if model is not None and model.unfinished is None else {}
    task = record.get("task") if record.get("task") in TASKS else None
    settings_class: type[Settings] = FinetuneSettings
    verb = "finetune" if task is None else f"finetune {task}"
    if "objective" in values or "data" in values:
        settings_class, verb = settings_type_of_file(settings_file), "pretrain"
    elif task is not None:
        settings_class = settings_type(get_task(task))
    plan = read_plan(path, [])
    max_steps = train.get("max_steps") if isinstance(train := values.get("train"), dict) else None
    if plan:
        max_steps = plan[-1].updates
    step = state.step if state is not None else report.get("steps", 0)
    run = {
        "verb": verb,
        "finished": bool(report) and step >= (max_steps or 0),
        "step": step,
        "of": max_steps,
        "seconds": report.get("seconds") or (round(state.seconds, 1) if state is not None else None),
        "tokens": state.tokens if state is not None else report.get("tokens"),
        "scores": report.get("held_out")
        or _float_scores(report.get("validation"))
        or (state.evaluation if state else {}),
        "best_step": state.best_step if state is not None else None,
        "remarks": report.get("remarks", []),
        "settings": _changed_settings(settings_class, values) | _changed_budget(plan),
        "model": None if model is None else str(model.model_folder),
        "model_of_step": (record.get("unfinished") or {}).get("step"),
    }
    description = {"kind": "run", "path": str(path), "run": run}
    return description if model is None else {**model.info(), **description}


def _changed_budget(plan: Sequence[PlanEntry]) -> dict[str, Any]:
    """Return the budget of a continued run by dotted names; None for a setting that only the first budget has."""
    if not plan or plan[-1].budget == plan[0].budget:
        return {}
    names = {**plan[0].budget, **plan[-1].budget}
    return {f"train.{name}": plan[-1].budget.get(name) for name in names}


def _float_scores(scores: Any) -> dict[str, float]:
    return {k: v for k, v in scores.items() if isinstance(v, float)} if isinstance(scores, dict) else {}


def _changed_settings(settings_class: type[Settings], values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults, without the model's for settings that include them."""
    defaults = settings_class().flat()
    has_model_settings = "model.vocab_size" in defaults
    return {
        name: value
        for name, value in settings_class.dotted(values).items()
        if value != defaults.get(name) and not (has_model_settings and name.startswith("model."))
    }


def compare_models(a: str | Path, b: str | Path) -> dict[str, Any]:
    """Compare two models.

    Args:
        a: A preset's name, a run, a model folder, or a published model's name.
        b: Likewise.

    Returns:
        `settings` (of the model), `family`, `runs` (training settings if both are runs, else empty), and
        `parameters` (counts of the encoders' parameters): each a list of the rows {"what", "a", "b"} in which they
        differ. The last row of `parameters` has both sums.

    Raises:
        InputError: A name is not that of a model.
    """
    configs = [_config(name) for name in (a, b)]
    run_settings = [_run_settings(name) for name in (a, b)]
    traits = [_family_traits(get_family(config.model_type)) for config in configs]
    counts = [_parameter_counts(config) for config in configs]
    parameters = _differing_rows(*counts)
    parameters.append({"what": "sum", "a": sum(counts[0].values()), "b": sum(counts[1].values())})
    return {
        "kind": "difference",
        "a": str(a),
        "b": str(b),
        "settings": _differing_rows(*(config.flat() for config in configs)),
        "family": _differing_rows(*traits),
        "runs": _differing_rows(*run_settings) if all(run_settings) else [],
        "parameters": parameters,
    }


def _config(name: str | Path) -> ModelConfig:
    if not Path(name).exists():
        if resolve_preset(str(name)):
            return preset(str(name))
        if suggestions := similar_presets(str(name), cutoff=0.8):
            message = "there is no preset, run, or model folder of this name"
            hint = f"did you mean {suggestions[0]}?"
            raise InputError("model_not_found", message, location=name, hint=hint)
    return read_folder(locate(name)).config


def _run_settings(name: str | Path) -> dict[str, Any]:
    """Return the settings of a run except its model's, by dotted names; empty for other folders and names."""
    file = Path(name) / "settings.yaml"
    values = read_yaml(file) if file.is_file() else {}
    flat: dict[str, Any] = {}
    for group, settings in values.items():
        if group == "model":
            continue
        if isinstance(settings, dict):
            flat |= {f"{group}.{key}": value for key, value in settings.items()}
        else:
            flat[group] = settings
    return flat


def _family_traits(model_family: Family) -> dict[str, Any]:
    """Return the tokenizer of a family, and how it is pre-trained."""
    defaults = {name: DataSettings.model_fields[name].default for name in _PRETRAINING_DATA}
    data = {**defaults, **model_family.pretraining}
    training = {"adam_beta2": TrainSettings().adam_beta2, **model_family.training}
    return {
        "usual tokenizer": model_family.tokenizer,
        "pre-trained with objective": model_family.objective,
        **{f"pre-trained with data.{name}": value for name, value in data.items()},
        **{f"pre-trained with train.{name}": value for name, value in training.items()},
    }


def _parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Return the number of the encoder's parameters by part, summed over the layers."""
    counts: dict[str, int] = {}
    for term in encoder_parameter_terms(config):
        first, _, rest = term.name.partition(" ")
        name = f"the layers' {rest.partition(' ')[2]}" if first == "layer" else term.name
        counts[name] = counts.get(name, 0) + term.size
    return counts


def _differing_rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each name whose values differ; a missing value is None."""
    names = dict.fromkeys([*a, *b])
    rows = ({"what": name, "a": a.get(name), "b": b.get(name)} for name in names)
    return [row for row in rows if row["a"] != row["b"]]
