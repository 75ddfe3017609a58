"""The verb `distill`: a student of a pre-trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options

if TYPE_CHECKING:
    from bertsmith.settings import Settings


def _settings() -> type[Settings]:
    from bertsmith.workflows.pretrain_settings import settings_type

    return settings_type("distil")


@click.command(cls=options.command_with_settings(_settings))
@click.option(
    "--teacher",
    required=True,
    metavar="DIR|NAME",
    help="The model that is imitated: a pre-trained run, a model folder or a published name.",
)
@click.option(
    "--data", required=True, metavar="DIR", help="Token shards, prepared with the teacher's tokenizer."
)
@click.option("--out", required=True, metavar="RUN", help="The run folder to write.")
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
@options.assignments
@options.resume
@options.as_json
def distill(
    teacher: str,
    data: str,
    out: str,
    layers: int | None,
    minutes: float | None,
    assignments: tuple[str, ...],
    resume: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Train a smaller student of a pre-trained model on token shards (Sanh et al. 2019).

    \b
    Example:
      bertsmith distill --teacher bert --data shards --out student --minutes 30
      bertsmith distill --teacher bert --data shards --out student --layers 2
      bertsmith distill --teacher bert --data shards --out student --set objective.cosine_weight=0
      bertsmith distill --teacher bert --data shards --out student --resume

    The student is as wide as its teacher, begins with some of its layers and learns three things at once: what
    the teacher expects behind each mask, the masked tokens themselves, and the direction of the teacher's hidden
    states. A BERT's student is a DistilBERT. Ctrl-C saves and stops; --resume continues as if nothing had
    happened.
    """
    from bertsmith import console
    from bertsmith.cli.train import show_run
    from bertsmith.workflows.distill import distill as run

    given = options.short_of(short)
    options.refuse_twice({**given, "train.max_minutes": minutes}, assignments)
    trained = run(
        data,
        out,
        teacher,
        layers=layers,
        minutes=minutes,
        settings=options.as_assignments(given, assignments),
        resume=resume,
        begun=click.get_current_context().obj,
        tell=console.note,
    )
    if as_json:
        console.result_json({"run": out, **trained.report})
    else:
        show_run(trained, out)
