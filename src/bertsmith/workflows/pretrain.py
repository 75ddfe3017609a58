"""`bertsmith pretrain`: token shards → a pre-trained BERT in a run folder, resumable to the bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bertsmith import console, disk, machine
from bertsmith.artifacts.folder import write_folder
from bertsmith.errors import InputError
from bertsmith.instances.buckets import check_budget
from bertsmith.keywords import Chosen, assignments_of
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import Objective, held_out_figures
from bertsmith.place import Place
from bertsmith.shards.shards import Shards
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.loop import (
    Course,
    Evaluation,
    Progress,
    fingerprint,
    train,
)
from bertsmith.use.predict import Model, load
from bertsmith.wording import counted, percent
from bertsmith.workflows.budget import aim_of, expect_evaluations, expect_writing, footing
from bertsmith.workflows.first_weights import first_weights
from bertsmith.workflows.pretrain_base import base_of, settings_from, take_over
from bertsmith.workflows.pretrain_pairs import ACCURACY, PairsOnTheWay, expect_pairs, pairs_on_the_way
from bertsmith.workflows.pretrain_recipe import learning_of, learning_settings
from bertsmith.workflows.pretrain_settings import (
    PretrainSettings,
    asked_for,
    asked_kind,
    resolved,
    settings_of,
)
from bertsmith.workflows.pretrain_size import size_in_minutes
from bertsmith.workflows.pretrain_source import Source, tell_of_instances
from bertsmith.workflows.run import (
    SETTINGS,
    OnTheWay,
    as_assignments,
    check_accumulation,
    check_folders,
    goes_on,
    is_written,
    numbers,
    place_of,
    run_alone,
    settings_of_run,
    start_over,
    write_report,
    write_whole,
)


@run_alone
def pretrain(
    data: Shards | str | Path,
    out: str | Path,
    *,
    preset: str | None = None,
    recipe: str | Path | None = None,
    model: str | Path | Model | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    minutes: float | None = None,
    evaluate_pairs: str | Path | None = None,
    settings: Chosen = (),
    resume: bool = False,
    overwrite: bool = False,
    begun: float | None = None,
    tell: Callable[[str], None] = console.tell,
    **keywords: Any,
) -> Model:
    """Pre-train a BERT on prepared shards with masked LM and what is asked of pairs (next sentence).

    data: a folder of `prepare`, or its Shards. out: the run folder: settings.yaml, log.jsonl, checkpoints/,
    model/ (the Hugging Face layout), report.json. preset: sizes of the model (none: the recipe's, or
    bert-mini-uncased); the vocabulary's size comes from the data. model: start from this model (a run, a model
    folder, a published name) and its heads in place of new weights; its tokenizer must be the data's. recipe:
    YAML of settings. settings and keywords, which win: values by dotted or nested names
    ({"train.max_steps": 500}) or assignments ("train.max_steps=500"), and settings by their last names
    (max_steps=500, masking="span"); `bertsmith pretrain --help` lists them. minutes: that this may take in all;
    the number of updates is planned anew as the run goes. begun: what `machine.clock` said when these minutes
    began (None: now). evaluate_pairs: a file of minimal pairs; each evaluation also reports the accuracy on a
    fixed sample of them, and the report that on all, by phenomenon (`Model.score_pairs`). tokenizer: only checked
    against the data's.
    resume: continue from the newest whole checkpoint of `out`, with its settings; a recipe or assignments that
    say otherwise are refused, but for a larger budget, with which a finished run is trained further, and for what
    leaves the run's numbers alone. overwrite: start over where `out` holds a run, which is removed first; a folder
    with anything else in it is refused.

    Returns the model, with its report. Raises InputError for what a user can fix, MachineError, or Stopped
    after a signal.
    """
    out, begun = Path(out), machine.clock() if begun is None else begun
    shards = data if isinstance(data, Shards) else Shards.open(data)
    shards.verify()
    if tokenizer is not None:
        _same_tokenizer(tokenizer, shards.tokenizer, shards)
    said = assignments_of(asked_kind(recipe, settings, keywords), settings, keywords, pretrain)
    assignments = [*said, *([f"train.max_minutes={minutes}"] if minutes is not None else [])]
    if evaluate_pairs is not None:
        assignments.append(f"evaluate.pairs={json.dumps(str(evaluate_pairs))}")
    resuming = goes_on(out, resume=resume, overwrite=overwrite, tell=tell)
    base = base_of(model, out / SETTINGS if resuming else recipe, shards, tell, resuming=resuming)
    if not (resuming or base or recipe or preset):
        preset = size_in_minutes(assignments, shards.tokenizer, tell)
    chosen = _chosen(out, preset, recipe, assignments, shards.tokenizer, base, resuming=resuming)
    if not resuming and base is None and recipe is None:
        _tell_of_learning(chosen, tell)
    _check_length(chosen)
    place = place_of(chosen.train)
    _check_memory(chosen, place)
    source = Source.of(shards, chosen, tell)
    encoder, objective = first_weights(chosen, place.drawing, source.counts, base.folder if base else None)
    if base is not None:
        take_over(base.folder, encoder, objective, chosen, tell)
    check_folders(out, objective.folders(encoder))
    place.settle(encoder, objective)
    batches = tell_of_instances(source, tell)
    held_out = source.held_out_batches()
    pairs = pairs_on_the_way(chosen.evaluate, encoder, objective, shards.tokenizer, place, tell)

    def updates() -> int:
        return _updates(chosen, source)

    on = footing(encoder, objective, source.phases, chosen.train, place, updates, tell, resuming=resuming)
    expect_evaluations(on.speeds, held_out, _tokens_per_update(source))
    expect_writing(on.speeds, encoder, objective)
    if pairs is not None and (budget := chosen.train.max_minutes) is not None:
        pairs = expect_pairs(on.speeds, pairs, _tokens_per_update(source), None if resuming else budget, tell)
        chosen = chosen.model_copy(update={"evaluate": pairs.settings})
    named = _named(recipe, assignments) if resuming else None
    aim = aim_of(chosen.train, on, updates, begun, named=named, tell=tell)
    if not resuming:
        chosen = _settled(chosen, on.place)
        start_over(out, shards.folder, model.path if isinstance(model, Model) else model, tokenizer)
        write_whole(out / SETTINGS, chosen.to_yaml())

    def write_so_far(progress: Progress, mark: dict[str, Any]) -> None:
        _write(
            out, encoder, objective, shards.tokenizer, _record(chosen, progress, progress.evaluation) | mark
        )

    course = Course(
        source.phases,
        chosen.train,
        out,
        title="pretrain",
        fingerprint=fingerprint(
            numbers(chosen),
            disk.digest(shards.folder / "manifest.json"),
            *([base.folder.weights_digest()] if base is not None else []),
        ),
        aim=aim,
        evaluation=_evaluation(held_out, encoder, objective, on.place, pairs),
        speeds=on.speeds,
        unfinished=OnTheWay(write_so_far),
    )
    progress = train(encoder, objective, course, on.place, resume=resume, tell=tell)
    if resuming and not progress.made and is_written(out, progress.step):
        finished = load(out)
        unscored = pairs is not None and "pairs" not in finished.report
        tell(
            f"{out}: the run is finished, after {counted(progress.step, 'update')}; its model stays as it is. "
            "A larger budget would train it further"
            + (f"; bertsmith score {out} --pairs FILE scores pairs" if unscored else "")
        )
        return finished
    figures = dict(progress.evaluation)
    for prefix, some in held_out.items():
        figures |= {f"{prefix}{k}": v for k, v in objective.by_frequency(source.counts, some).items()}
    report = _report(chosen, source, progress, figures, batches)
    for remark in report["remarks"]:
        tell(remark)

    def write() -> None:
        _write(out, encoder, objective, shards.tokenizer, _record(chosen, progress, figures))
        write_report(out, report)

    write()
    if pairs is not None:  # what takes long, and may be interrupted, when the model is there
        report["pairs"] = pairs.report(tell)
        figures[ACCURACY] = report["pairs"]["accuracy"]
        write()
    return load(out)


def _chosen(
    out: Path,
    preset: str | None,
    recipe: str | Path | None,
    assignments: Sequence[str],
    tokenizer: Tokenizer,
    base: Model | None,
    *,
    resuming: bool,
) -> PretrainSettings:
    """The run's settings: kept where it is resumed; else of the preset or model, the recipe, the assignments."""
    sizes, values = asked_for(preset, recipe)
    if resuming:
        settled = learning_settings(sizes).get("model", {})  # the preset's own values did not hold
        sizes = {name: value for name, value in sizes.items() if name not in settled}
        asked = [*as_assignments({"model": sizes}), *as_assignments(values), *assignments]
        return settings_of_run(settings_of(out / SETTINGS), out, asked)
    if base is not None:
        return settings_from(base, sizes, values, recipe, assignments, tokenizer)
    return resolved(sizes, values, recipe, assignments, tokenizer)


def _tell_of_learning(chosen: PretrainSettings, tell: Callable[[str], None]) -> None:
    """Say that a small model is not trained with the paper's settings, where nobody chose others."""
    usual, train, data = learning_of(chosen.model.model_dump()), chosen.train, chosen.data
    if usual is None or train.learning_rate != usual.rate:
        return
    muon = f"Muon at {train.muon_learning_rate:g}, " if train.optimizer == "muon" else ""
    tell(
        f"settings that a model of this size learns with: {muon}AdamW at {train.learning_rate:g}, schedule "
        f"{train.schedule}, {counted(train.batch_size, 'sequence')} of {data.sequence_length} tokens a batch, "
        f"{percent(data.mask_share)} of them predicted, dropout {chosen.model.hidden_dropout_prob:g}; "
        "recipes/bert-paper.yaml has the paper's"
    )


def _same_tokenizer(tokenizer: Tokenizer | str | Path, own: Tokenizer, shards: Shards) -> None:
    given = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    if given.digest != own.digest:
        raise InputError(
            f"{shards.folder}: this data was prepared with another tokenizer than the one given",
            "prepare the data again with this tokenizer, or leave --tokenizer out",
        )


def _check_memory(chosen: PretrainSettings, place: Place) -> None:
    """InputError where weights, gradients and moments do not fit; counted on modules that take no memory."""
    with torch.device("meta"):
        modules = first_weights(chosen, torch.Generator())
    parameters = sum(p.numel() for module in modules for p in module.parameters())
    machine.check_memory(parameters, machine.memory_bytes(place.device))


def _check_length(chosen: PretrainSettings) -> None:
    longest = max(chosen.data.sequence_length, chosen.data.long_sequence_length or 0)
    if longest > chosen.model.longest:
        raise InputError(
            f"sequences of {longest} tokens do not fit {chosen.model.longest} positions",
            "lower data.sequence_length"
            + ("" if chosen.base else ", or raise model.max_position_embeddings"),
        )
    check_budget(chosen.train.batch_tokens, longest)


def _named(recipe: str | Path | None, assignments: Sequence[str]) -> list[str]:
    """What this command says of settings, in its recipe and by assignments."""
    _, values = asked_for(None, recipe)
    return [*as_assignments(values), *assignments]


def _settled(chosen: PretrainSettings, place: Place) -> PretrainSettings:
    """The settings with what was left open to the machine."""
    fixed = {"precision": place.precision, "device": str(place.device)}
    return chosen.model_copy(update={"train": chosen.train.model_copy(update=fixed)})


def _updates(chosen: PretrainSettings, source: Source) -> int:
    """How many updates a budget comes to that is not one of minutes."""
    settings = chosen.train
    if settings.max_steps:
        return settings.max_steps
    if settings.max_tokens:
        return math.ceil(settings.max_tokens / _tokens_per_update(source))
    check_accumulation(settings, _updates_per_epoch(source))
    return max(1, math.ceil(settings.epochs * _updates_per_epoch(source)))


def _updates_per_epoch(source: Source) -> float:
    train, stream = source.chosen.train, source.streams[0]
    if train.batch_tokens is None:
        return stream.size(0) / (train.batch_size * train.accumulate)
    return len(stream.filling(0, train.batch_size).tokens) / train.accumulate


def _tokens_per_update(source: Source) -> float:
    train = source.chosen.train
    return train.accumulate * sum(
        share * float(stream.filling(0, train.batch_size).tokens.mean())
        for stream, (_, share) in zip(source.streams, source.lengths, strict=True)
    )


def _evaluation(
    held_out: dict[str, list[Any]],
    encoder: Encoder,
    objective: Objective,
    place: Place,
    pairs: PairsOnTheWay | None,
) -> Evaluation | None:
    """How the run is judged on its held-out documents, at each phase's length where it has two, and on pairs."""
    if not held_out and pairs is None:
        return None

    def measure() -> dict[str, float]:
        return {
            f"{prefix}{name}": value
            for prefix, batches in held_out.items()
            for name, value in held_out_figures(objective, encoder, batches, place).items()
        } | ({} if pairs is None else pairs.measure())

    return Evaluation(measure)


def _report(
    chosen: PretrainSettings,
    source: Source,
    progress: Progress,
    held_out: dict[str, float],
    batches: dict[str, float | int],
) -> dict[str, Any]:
    return {
        "objective": chosen.objective.name,
        **({"base": chosen.base} if chosen.base else {}),
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
        "precision": chosen.train.precision,
        "device": chosen.train.device,
        "threads": progress.threads,
        "held_out": held_out,
        "remarks": _worse_than_unigrams(chosen, source, progress, held_out),
        "corpus": source.shards.counts,
        "first_epoch": source.streams[0].plan(0).counts,
        "batches": batches,
    }


def _worse_than_unigrams(
    chosen: PretrainSettings, source: Source, progress: Progress, held_out: dict[str, float]
) -> list[str]:
    """A sentence where the held-out MLM loss is no better than by word frequencies alone: what was reached, and
    what to change, each with its figure."""
    loss, alone = held_out.get("mlm_loss"), held_out.get("unigram_mlm_loss")
    if loss is None or alone is None or loss < alone:
        return []
    train, model = chosen.train, chosen.model
    passes = progress.step / max(1e-9, _updates_per_epoch(source))
    return [
        f"this model has learnt nothing of the context yet: its held-out MLM loss is {loss:.2f}, and word "
        f"frequencies alone reach {alone:.2f}. Change one of these: more updates (train.max_steps, --minutes; now "
        f"{counted(progress.step, 'update')}, {passes:.2g} passes over the data); another train.learning_rate "
        f"(now {train.learning_rate:g}: higher if the loss in log.jsonl still falls, lower if it has risen); a "
        f"smaller --preset (now {counted(model.num_hidden_layers, 'layer')} of {model.hidden_size:,})"
    ]


def _record(chosen: PretrainSettings, progress: Progress, held_out: dict[str, float]) -> dict[str, Any]:
    """What bertsmith.json says of the training."""
    return {
        "task": "pretrain",
        "objective": chosen.objective.name,
        **({"base": chosen.base} if chosen.base else {}),
        "steps": progress.step,
        "tokens": progress.tokens,
        "held_out": held_out,
    }


def _write(
    out: Path, encoder: Encoder, objective: Objective, tokenizer: Tokenizer, record: dict[str, Any]
) -> None:
    """The model folders."""
    for name, parts in objective.folders(encoder).items():
        write_folder(
            out / name,
            parts.config,
            parts.modules,
            tokenizer=tokenizer,
            record=record | objective.record(),
        )
