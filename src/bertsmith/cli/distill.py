"""The verb `distill`: a student of a pre-trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options

if TYPE_CHECKING:
    from bertsmith.settings import Settings


def _settings() -> type[Settings]:
    from bertsmith.objectives.settings import DistillationSettings
    from bertsmith.pretraining.settings import with_objective

    return with_objective("distil", DistillationSettings)


@click.command(cls=options.command_with_settings(_settings))
@click.option(
    "--teacher",
    required=True,
    metavar="DIR|NAME",
    help="The model that is imitated: a pre-trained run, a model folder or a published name.",
)
@click.option("--data", metavar="DIR", help="Token shards, prepared with the teacher's tokenizer.")
@click.option("--train", metavar="FILE", help="Or, of a fine-tuned teacher: labelled examples of its task.")
@click.option("--validation", metavar="FILE", help="With --train: those that decide.")
@click.option(
    "--model",
    metavar="DIR|NAME",
    help="With --train: the student as it begins, with the teacher's vocabulary.",
)
@click.option("--output-dir", "out", required=True, metavar="RUN", help="The run folder to write.")
@click.option(
    "--layers", type=click.IntRange(1), metavar="N", help="Layers of the student [half of the teacher's]."
)
@click.option(
    "--minutes",
    type=options.FiniteRange(0, min_open=True),
    metavar="M",
    help="How long the run may take in all, as for `bertsmith pretrain`.",
)
@options.short_forms
@options.changes
@options.resume
@options.as_json
def distill(
    teacher: str,
    data: str | None,
    train: str | None,
    validation: str | None,
    model: str | None,
    out: str,
    layers: int | None,
    minutes: float | None,
    changes: dict[str, Any],
    resume: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Train a smaller student of a model, on token shards or on a task's examples (Sanh et al. 2019).

    \b
    Example:
      bertsmith distill --teacher bert --data shards --output-dir student --minutes 30
      bertsmith distill --teacher bert --data shards --output-dir student --layers 2
      bertsmith distill --teacher bert --data shards --output-dir student --set objective.cosine_weight=0
      bertsmith distill --teacher moods --model student --train a.csv --validation b.csv --output-dir small-moods
      bertsmith distill --teacher bert --data shards --output-dir student --resume

    The student is as wide as its teacher, begins with some of its layers and learns three things at once: what
    the teacher expects behind each mask, the masked tokens themselves, and the direction of the teacher's hidden
    states. A BERT's student is a DistilBERT. Ctrl-C saves and stops; --resume continues as if nothing had
    happened.

    Of a fine-tuned teacher a student (--model) learns the task from examples and from the teacher's answers to
    them; --set teacher.temperature, teacher.soft_weight and teacher.task_weight say how.
    """
    from bertsmith.cli.train import show_result
    from bertsmith.experiments.distillation import distill as run

    given = options.short_of(short)
    if train is not None:
        if layers is not None or minutes is not None:
            option = "--layers" if layers is not None else "--minutes"
            raise click.UsageError(
                f"{option} is for a student of token shards; --model brings this one's layers"
            )
        _distill_task(
            teacher, model, train, validation, data, out, given, changes, resume=resume, as_json=as_json
        )
        return
    if data is None:
        raise click.UsageError(
            "give --data DIR, or of a fine-tuned teacher --train FILE, --validation FILE and --model DIR"
        )
    options.refuse_twice({**given, "train.max_minutes": minutes}, changes)
    trained = run(
        data,
        out,
        teacher,
        layers=layers,
        minutes=minutes,
        settings=options.changes_of(given, changes),
        resume=resume,
        begun=click.get_current_context().obj,
    )
    show_result(trained, out, as_json=as_json)


def _distill_task(
    teacher: str,
    model: str | None,
    train: str,
    validation: str | None,
    data: str | None,
    out: str,
    given: dict[str, Any],
    changes: dict[str, Any],
    *,
    resume: bool,
    as_json: bool,
) -> None:
    from bertsmith.cli.finetune import show_report
    from bertsmith.experiments.distillation import distill_task

    if model is None or validation is None or data is not None:
        raise click.UsageError("--train goes with --validation FILE and --model DIR, and without --data")
    made = distill_task(
        teacher,
        model,
        out,
        train=train,
        validation=validation,
        settings=options.changes_of(given, changes),
        resume=resume,
    )
    show_report(out, made.report, as_json=as_json)
