"""`bertsmith finetune TASK`: fine-tune a pre-trained model on labeled examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

from bertsmith import hardware
from bertsmith.finetuning.data import file_settings, load_examples, write_split
from bertsmith.finetuning.job import FinetuneJob, new_settings, resumed_settings
from bertsmith.finetuning.model import FEATURES, build_model, create_context, remove_features
from bertsmith.finetuning.report import log_examples
from bertsmith.finetuning.settings import OWN_ARGUMENTS, FinetuneSettings, settings_type
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.io.sources import Source, is_path
from bertsmith.keywords import FinetuneKeywords
from bertsmith.reports.run import StepTimer
from bertsmith.runs import compute_setup, run_folder
from bertsmith.settings import Changes, resolve
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.registry import Task, get_task
from bertsmith.training.budget import Throughput
from bertsmith.training.trainer import Trainer


def finetune(
    task: str,
    model: str | Path | Model,
    output_dir: str | Path,
    *,
    train: Source,
    validation: Source | None = None,
    validation_split: float | None = None,
    test_split: float | None = None,
    sample: int | None = None,
    label_names: str | Path | LabelNames | None = None,
    recipe: str | Path | None = None,
    settings: Changes = (),
    states: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **keywords: Unpack[FinetuneKeywords],
) -> Model:
    """Fine-tune a model for a task, and keep the weights of the best evaluation on the validation examples.

    Args:
        task: The name of the task.
        model: The base model: a run, a model folder, or a published name.
        output_dir: The run folder.
        train: Training examples: a file as the task reads it, or data in memory with the same columns: a table
            (pandas, polars, pyarrow), a dataset, a dict of columns, a list of dicts, or of tuples (text, label).
        validation: Validation examples, likewise.
        validation_split: Without `validation`, the ratio of examples to hold out, after `sample`: equal texts stay
            together, classes keep their proportions, and the parts are written to output_dir/split.
        test_split: The ratio of examples of `train` to hold out first, likewise. They choose neither weights nor
            thresholds, and are scored once, when the run has finished.
        sample: The number of examples of `train` to draw at random.
        label_names: Names for labels that are numbers or codes: a list in the order of the numbers, a mapping from
            each code to its name, or a file of either.
        recipe: A YAML file of settings.
        settings: Settings by name, as in `pretrain`.
        states: With `freeze_encoder=True`, a folder for the cached hidden states, which runs on the same data
            share; None: `output_dir`, until the run finishes.
        resume: Continue an interrupted run. Data in memory must be passed again.
        overwrite: Replace a run.
        keywords: Settings by their last names, such as `num_train_epochs=3`.

    Returns:
        The fine-tuned model, with its report.

    Raises:
        InputError: The user can fix the error.
        MachineError: The machine failed, or the loss is not finite.
        Stopped: A signal stopped the run, which is saved.
    """
    hardware.check_single_process("finetune")
    start, out, declaration = hardware.clock(), atomic.output_path(output_dir), get_task(task)
    base = load(model)  # before the run folder exists, which a mistyped name would resemble
    with atomic.folder_lock(out, "run"):
        changes = resolve(settings_type(declaration), settings, keywords, finetune, hidden=OWN_ARGUMENTS)
        is_resuming = run_folder.check_resume(out, resume=resume, overwrite=overwrite)
        files = file_settings(train, validation, validation_split, test_split, sample, label_names)
        if is_resuming:
            run_settings, explicit = resumed_settings(declaration, out, files, recipe, changes)
        else:
            run_settings, explicit = new_settings(declaration, base, files, recipe, changes), None
        sources = {"train": train, "validation": validation}
        job = _prepare_job(declaration, run_settings, base, sources, out)
        if not is_resuming:
            job.complete_train_settings()
            run_folder.start_run(out, job.settings, base.path, *filter(is_path, sources.values()))
        if run_settings.files.validation is None or job.examples.test:
            write_split(job.examples, job.task.data, out / "split")
        if run_settings.train.freeze_encoder:
            job.cache_features(Path(states or out / FEATURES), [*job.items, *job.validation_items])
        if job.settings.train.head_probe:
            job.fit_head(out / FEATURES)

        budget = compute_setup.training_budget(
            job.settings.train, Throughput(), job.num_updates, start, explicit=explicit
        )
        with job.timer.step("training"):
            output = Trainer(job.module, job.training_job(budget), job.context, resume=is_resuming).fit()
        run_folder.finish_run(out, output, job.save, resuming=is_resuming)
        remove_features(out / FEATURES)
        return load(out)


def _prepare_job(
    task: Task, settings: FinetuneSettings, base: Model, sources: Mapping[str, Source | None], out: Path
) -> FinetuneJob:
    """Read the examples, build the model, and check that the run can start."""
    context, timer = create_context(settings.train, base.folder), StepTimer()
    with timer.step("reading the files"):
        examples = load_examples(task, settings.files, settings.task, sources)
    log_examples(examples.summary, settings.files)
    with timer.step("building the model"):
        encoder, fitted_task = build_model(task, base.folder, settings, examples.metadata, context)
    job = FinetuneJob(settings, base, encoder, fitted_task, examples, context, timer, out)
    job.prepare()
    run_folder.check_folders(out, fitted_task.model.export(encoder))
    return job
