"""`bertsmith pretrain`: pre-train a BERT on prepared text."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Unpack

from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.keywords import PretrainKeywords
from bertsmith.pretraining import resolve_settings
from bertsmith.pretraining.data import PretrainData, check_lengths
from bertsmith.pretraining.job import PretrainJob, log_epochs, log_settings, read_evaluation_pairs
from bertsmith.pretraining.model import build_model, check_memory, load_base
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs import compute_setup, run_folder
from bertsmith.settings import Changes, resolve
from bertsmith.training.checkpoint import newest_name
from bertsmith.training.distributed import rank_group
from bertsmith.training.trainer import Trainer


def pretrain(
    data: Shards | str | Path,
    output_dir: str | Path,
    *,
    preset: str | None = None,
    recipe: str | Path | None = None,
    model: str | Path | Model | None = None,
    minutes: float | None = None,
    evaluate_pairs: str | Path | None = None,
    settings: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    start_time: float | None = None,
    **keywords: Unpack[PretrainKeywords],
) -> Model:
    """Pre-train a BERT on prepared text with masked LM and next sentence prediction, or another objective.

    Under torchrun, each process calls this with the same arguments, trains on its part of each batch, and gets the
    same model.

    Args:
        data: The folder that `prepare` has written, or its Shards.
        output_dir: The run folder, for settings.yaml, log.jsonl, checkpoints, the model, and report.json.
        preset: The model's sizes; None: the recipe's, or with `minutes` those that fit this machine, or
            bert-mini-uncased. The vocabulary size comes from the data.
        recipe: A YAML file of settings.
        model: A model to continue from, with its heads: a run, a model folder, or a published name. Its tokenizer
            must be that of the data.
        minutes: The minutes that the whole run may take; the number of updates is corrected during the run.
        evaluate_pairs: A file of minimal pairs. Each evaluation reports the accuracy on a sample of them.
        settings: Settings by dotted or nested names ({"train.max_steps": 500}), or as "train.max_steps=500".
        resume: Continue an interrupted run, or a finished one with a larger budget, with the same settings.
        overwrite: Replace a run.
        start_time: The clock at which the minutes start; None: now.
        keywords: Settings by their last names, such as `max_steps=500`.

    Returns:
        The model, with its report.

    Raises:
        InputError: The user can fix the error.
        MachineError: The machine failed, or the loss is not finite.
        Stopped: A signal stopped the run, which is saved.
    """
    start, out = hardware.clock() if start_time is None else start_time, atomic.output_path(output_dir)
    with rank_group() as ranks, ranks.on_main(atomic.folder_lock(out, "run")):
        shards = data if isinstance(data, Shards) else Shards.open(data)
        shards.verify()
        run_type = resolve_settings.settings_type_of_arguments(preset, recipe, settings, keywords)
        changes = resolve(run_type, settings, keywords, pretrain)
        if minutes is not None:
            changes["train.max_minutes"] = minutes
        if evaluate_pairs is not None:
            changes["evaluate.pairs"] = str(evaluate_pairs)
        check_resume = partial(run_folder.check_resume, out, resume=resume, overwrite=overwrite)
        is_resuming = ranks.run_on_main(check_resume)
        model = changes.get("base") if model is None else model
        settings_file = out / run_folder.SETTINGS if is_resuming else recipe
        base = load_base(model, settings_file, shards, resuming=is_resuming)
        if is_resuming:
            run_settings, explicit = resolve_settings.resumed_settings(out, preset, recipe, changes)
        else:
            if not (base or recipe or preset):
                preset = ranks.run_on_main(lambda: resolve_settings.choose_preset(changes, shards.tokenizer))
            explicit = None
            run_settings = resolve_settings.new_settings(preset, recipe, changes, shards.tokenizer, base)
            if base is None:
                log_settings(run_settings)
        checkpoint = ranks.run_on_main(lambda: newest_name(out / run_folder.CHECKPOINTS))
        job = _prepare_job(run_settings, shards, base, out, from_checkpoint=is_resuming and bool(checkpoint))

        throughput = job.measure_throughput(ranks, resuming=is_resuming)
        args = run_settings.train, throughput, job.num_updates, start, ranks.world_size
        budget = ranks.run_on_main(partial(compute_setup.training_budget, *args, explicit=explicit))
        if not is_resuming:
            log_epochs(budget.num_updates, job.data.updates_per_epoch)
            train = compute_setup.with_context(run_settings.train, job.context)
            job.settings = job.settings.model_copy(update={"train": train})
            inputs = (shards.folder, model.path if isinstance(model, Model) else model)
            ranks.run_on_main(lambda: run_folder.start_run(out, job.settings, *inputs))

        training_job = job.training_job(budget, throughput)
        output = Trainer(job.module, training_job, job.context, resume=is_resuming, ranks=ranks).fit()
        ranks.run_on_main(lambda: run_folder.finish_run(out, output, job.save, resuming=is_resuming))
        return load(out)


def _prepare_job(
    settings: PretrainSettings, shards: Shards, base: Model | None, out: Path, *, from_checkpoint: bool
) -> PretrainJob:
    """Split the data, build the model, and check that the run can start."""
    check_lengths(settings)
    pairs = read_evaluation_pairs(settings.evaluate)
    train, hidden_size = settings.train, settings.model.hidden_size
    context = ComputeContext.for_training(train).with_kernels(train, hidden_size, train.max_steps)
    check_memory(settings, context)
    data = PretrainData.from_shards(shards, settings)
    folder = None if base is None else base.folder
    encoder, objective = build_model(settings, data, folder, context, from_checkpoint=from_checkpoint)
    data.log_instances()
    run_folder.check_folders(out, objective.export(encoder))
    return PretrainJob(settings, data, base, encoder, objective, context, pairs, out)
