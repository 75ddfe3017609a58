"""`bertsmith pretrain`: token shards → a pre-trained BERT in a run folder, resumable to the bit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, option
from bertsmith.formatting import format_percent, pluralize
from bertsmith.inference.model import Model, load
from bertsmith.pretraining.base_model import base_of, settings_from
from bertsmith.pretraining.job import Work
from bertsmith.pretraining.model_size import size_in_minutes
from bertsmith.pretraining.recipe import learning_settings
from bertsmith.pretraining.resolve_settings import asked_for, asked_kind, needed_by, resolved, settings_of
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.compute_setup import training_budget
from bertsmith.runs.run_folder import (
    CHECKPOINTS,
    SETTINGS,
    check_folders,
    check_resume,
    exclusive_run,
    is_written,
    log_finished,
    start_over,
    write_whole,
)
from bertsmith.runs.settings import settings_of_run, with_recipe
from bertsmith.settings import Changes, resolve
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.distributed import rank_group
from bertsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)


def pretrain(
    data: Shards | str | Path,
    output_dir: str | Path,
    *,
    preset: str | None = None,
    recipe: str | Path | None = None,
    model: str | Path | Model | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    minutes: float | None = None,
    evaluate_pairs: str | Path | None = None,
    settings: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    begun: float | None = None,
    **keywords: Any,
) -> Model:
    """Pre-train a BERT on prepared shards with masked LM and what is asked of pairs (next sentence).

    data: a folder of `prepare`, or its Shards. output_dir: the run folder: settings.yaml, log.jsonl,
    checkpoints/, model/ (the Hugging Face layout), report.json. preset: sizes of the model (none: the recipe's,
    or bert-mini-uncased); the vocabulary's size comes from the data. model: start from this model (a run, a model
    folder, a published name) and its heads in place of new weights; its tokenizer must be the data's. recipe:
    YAML of settings. settings and keywords, which win: values by dotted or nested names ({"train.max_steps":
    500}) or texts ("train.max_steps=500"), and settings by their last names (max_steps=500, masking="span");
    `bertsmith pretrain --help` lists them. minutes: that this may take in all; the number of updates is planned
    anew as the run goes. begun: what `machine.clock` said when these minutes began (None: now). evaluate_pairs: a
    file of minimal pairs; each evaluation also reports the accuracy on a fixed sample of them, and the report
    that on all, by phenomenon (`Model.score_pairs`). tokenizer: only checked against the data's. resume: continue
    from the newest whole checkpoint of `output_dir`, with its settings; a recipe or settings that say otherwise
    are refused, but for a larger budget, with which a finished run is trained further, and for what leaves the
    run's numbers alone. overwrite: start over where `output_dir` holds a run, which is removed first; a folder
    with anything else in it is refused.

    Where torchrun has started several processes, each of them calls this with the same arguments, on the same
    `output_dir`, trains on its part of each batch, and gets the same model.

    Returns the model, with its report. Raises InputError for what a user can fix, MachineError, or Stopped
    after a signal.
    """
    out, begun = Path(output_dir), hardware.clock() if begun is None else begun
    with ExitStack() as stack:
        ranks = stack.enter_context(rank_group())
        if not ranks.is_main:
            stack.enter_context(_errors_only())
        shards = data if isinstance(data, Shards) else Shards.open(data)
        shards.verify()
        if tokenizer is not None:
            _same_tokenizer(tokenizer, shards.tokenizer, shards)
        changes = resolve(asked_kind(preset, recipe, settings, keywords), settings, keywords, pretrain)
        if minutes is not None:
            changes["train.max_minutes"] = minutes
        if evaluate_pairs is not None:
            changes["evaluate.pairs"] = str(evaluate_pairs)

        def open_run() -> tuple[bool, bool]:
            stack.enter_context(exclusive_run(out, resume=resume))
            resuming = check_resume(out, resume=resume, overwrite=overwrite)
            return resuming, resuming and newest_name(out / CHECKPOINTS) is not None

        resuming, restored = ranks.run_on_main(open_run)
        base = base_of(model, out / SETTINGS if resuming else recipe, shards, resuming=resuming)
        if not (resuming or base or recipe or preset):
            preset = ranks.run_on_main(lambda: size_in_minutes(changes, shards.tokenizer))
        chosen = _chosen(out, preset, recipe, changes, shards.tokenizer, base, resuming=resuming)
        if not resuming and base is None and recipe is None:
            _log_learning_settings(chosen)
        work = Work.of(shards, chosen, base, restored=restored)
        check_folders(out, work.objective.export(work.encoder))
        work, on = work.on_footing(resuming=resuming, ranks=ranks)
        named = with_recipe(PretrainSettings, recipe, changes) if resuming else None
        budget = ranks.run_on_main(
            lambda: training_budget(work.chosen.train, on, work.updates, begun, explicit=named)
        )
        if not resuming:
            work.log_passes(budget.num_updates)
            work = work.settled(on)

            def write_settings() -> None:
                start_over(out, shards.folder, model.path if isinstance(model, Model) else model, tokenizer)
                write_whole(out / SETTINGS, work.chosen.to_yaml())

            ranks.run_on_main(write_settings)
        job = work.job(budget, on.throughput, out)
        output = Trainer(work.module, job, on.context, resume=resume, ranks=ranks).fit()

        def write_model() -> None:
            if not resuming or output.num_new_updates or not is_written(out, output.state.step):
                work.leave(out, output)
                return
            log_finished(out, output)
            if work.pairs is not None and "pairs" not in load(out).report:
                logger.info("%s: the minimal pairs were not scored; `bertsmith score` scores them", out)

        ranks.run_on_main(write_model)
        return load(out)


@contextmanager
def _errors_only() -> Iterator[None]:
    """Log nothing below an error on a rank other than 0: rank 0 logs for all."""
    package_logger = logging.getLogger("bertsmith")
    level = package_logger.level
    package_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        package_logger.setLevel(level)


def _chosen(
    out: Path,
    preset: str | None,
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    tokenizer: Tokenizer,
    base: Model | None,
    *,
    resuming: bool,
) -> PretrainSettings:
    """The run's settings: kept where it is resumed; else of the preset or model, the recipe, the changes."""
    sizes, values = asked_for(preset, recipe)
    if resuming:
        kind = settings_of(out / SETTINGS)
        # of these the preset's own values did not hold
        settled = {**learning_settings(sizes).get("model", {}), **needed_by(kind.from_file(out / SETTINGS))}
        sizes = {name: value for name, value in sizes.items() if name not in settled}
        asked = {**kind.dotted({"model": sizes}), **kind.dotted(values), **changes}
        return settings_of_run(kind, out, asked)
    if base is not None:
        return settings_from(base, sizes, values, recipe, changes, tokenizer)
    return resolved(sizes, values, recipe, changes, tokenizer)


def _log_learning_settings(chosen: PretrainSettings) -> None:
    """Log what a model learns with where no recipe says it: what was measured for its size, but for what the user
    chose; or the defaults, where nothing was."""
    usual, train, data = learning_settings(chosen.model.model_dump()), chosen.train, chosen.data
    muon = f"Muon at {train.muon_learning_rate:g}, " if train.optim == "muon" else ""
    told = (
        f"{muon}AdamW at {train.learning_rate:g}, schedule {train.lr_scheduler_type}, "
        f"{pluralize(train.batch_size, 'sequence')} of {data.sequence_length} tokens a batch, "
        f"{format_percent(data.mlm_probability)} of them predicted, dropout {chosen.model.hidden_dropout_prob:g}"
    )
    if not usual:
        logger.info("no settings were measured for a model of this size, so the defaults are used: %s", told)
        return
    other = [
        f"{group}.{name} (usually {value})"
        for group, values in usual.items()
        for name, value in values.items()
        if getattr(getattr(chosen, group), name) != value
    ]
    logger.info(
        "settings for a model of this size: %s%s; recipes/bert-paper.yaml has those of the paper",
        told,
        f"; changed: {', '.join(other)}" if other else "",
    )


def _same_tokenizer(tokenizer: Tokenizer | str | Path, own: Tokenizer, shards: Shards) -> None:
    given = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    if given.digest != own.digest:
        raise InputError(
            "tokenizer_mismatch",
            "this data was prepared with another tokenizer",
            location=shards.folder,
            argument="tokenizer",
            hint=f"prepare the data again with this tokenizer, or remove {option('tokenizer')}",
        )
