"""The verb `compare`: two runs on the same examples, and whether they can be told apart."""

from __future__ import annotations

from typing import Any

import click

from bertsmith import hardware, log_handlers
from bertsmith.cli import options, task_options
from bertsmith.cli.computing import On, computed


@click.command(cls=task_options.RunCommand)
@click.argument("a", metavar="RUN_A")
@click.argument("b", metavar="RUN_B")
@click.option("--data", required=True, metavar="FILE", help="Labelled examples that both answer.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    metavar="N",
    help="How often examples are resampled [10,000; fewer of many examples].",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of the resampling."
)
@options.changes
@computed
@options.as_json
@log_handlers.without_repeats()
def compare(
    a: str,
    b: str,
    data: str,
    rounds: int | None,
    seed: int,
    on: On,
    as_json: bool,
    changes: dict[str, Any],
    **own: Any,
) -> None:
    """Whether the fine-tuned models of RUN_A and RUN_B differ by more than chance, on the same labelled file.

    \b
    Example:
      bertsmith compare moods moods-large --data test.csv
      bertsmith compare moods moods-large --data test.csv --json

    For each score: both models', the difference (B - A), its 95 % interval by a paired bootstrap, and p by an
    approximate randomization test, two-sided: how often a difference as large arises where, example by example, a
    coin says whose answer is whose.
    """
    from bertsmith import console
    from bertsmith.formatting import pluralize
    from bertsmith.inference.compare import compare as run
    from bertsmith.inference.compare import told
    from bertsmith.inference.model import load

    hardware.configure_process()
    models = [load(name, **on) for name in (a, b)]
    changes = task_options.task_changes(own, changes)
    report = run(models[0], models[1], data, seed=seed, rounds=rounds, **changes)
    if as_json:
        console.print_json(report)
        return
    console.print_table(
        f"A: {a}, B: {b}, on {data} ({pluralize(report['examples'], 'example')})",
        ["score", "A", "B", "B - A", "95 % interval", "p"],
        [
            (
                name,
                f"{score['a']:.4f}",
                f"{score['b']:.4f}",
                f"{score['difference']:+.4f}",
                f"{score['low']:+.4f} to {score['high']:+.4f}",
                f"{score['p']:.4f}",
            )
            for name, score in report["scores"].items()
        ],
    )
    console.print_result(told(report))
    rounds_of = " and ".join(
        f"{number:,}" for number in sorted({s["rounds"] for s in report["scores"].values()})
    )
    console.print_note(f"{rounds_of} rounds of resampling, seed {seed}")
