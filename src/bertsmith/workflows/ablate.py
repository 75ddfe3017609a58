"""`bertsmith ablate`: a table of a paper at one's own size: models that differ in one thing, pre-trained,
fine-tuned and compared over several seeds.

A recipe names the rows, each by the settings that it changes, and has the paper's figures. Each pre-training run
and each fine-tuning is an ordinary one in a folder of its own, so that what is finished stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pydantic import Field
from scipy.stats import ttest_rel

from bertsmith import console, disk
from bertsmith.display import Report
from bertsmith.errors import InputError
from bertsmith.reports.ablation import paper_plot, seeds_plot
from bertsmith.settings import Settings, read_yaml
from bertsmith.shards.shards import Shards
from bertsmith.use.model import Model
from bertsmith.wording import counted
from bertsmith.workflows.finetune import finetune
from bertsmith.workflows.pretrain import pretrain
from bertsmith.workflows.run import as_assignments, holds_run, write_report, write_whole

_ASKED = "ablation.json"
_APART = 0.05  # the largest p at which two rows are said to be told apart
_PAIRS = "minimal pairs"


class TaskRecipe(Settings):
    """A task that each model is fine-tuned for."""

    verb: str = Field("classify", description="a verb of finetune")
    train: str = Field("", description="its training file")
    dev: str = Field("", description="the file that decides")
    settings: dict[str, Any] = Field(default_factory=dict, description="of fine-tuning, by their names")


class AblationRecipe(Settings):
    """A table: what its rows change, and what the paper found."""

    title: str = Field("", description="what is compared")
    source: str = Field("", description="the paper and its table")
    preset: str | None = Field(None, description="sizes of all models; none: bert-mini-uncased")
    settings: dict[str, Any] = Field(default_factory=dict, description="of all rows, by their names")
    rows: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="what each row changes; the first is the one the others are compared with",
    )
    task_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="what a row changes in fine-tuning"
    )
    losses: list[str] = Field(
        default_factory=lambda: ["mlm_loss"],
        description="held-out figures that all rows have; less is better where a name ends in loss or perplexity",
    )
    paper: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="the paper's figures by their names, row by row; higher is better"
    )


def ablate(
    recipe: str | Path,
    out: str | Path,
    *,
    data: Shards | str | Path,
    tasks: str | Path | Mapping[str, Any] | None = None,
    pairs: str | Path | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = 3,
    settings: Sequence[str] = (),
    resume: bool = False,
    tell: Callable[[str], None] = console.tell,
) -> Report:
    """Pre-train each row of a recipe with each seed, fine-tune it for each task, and set it beside the paper.

    recipe: YAML as in recipes/ablations/. data: prepared shards. tasks: what each model is fine-tuned for, a YAML
    file or a mapping of names to {verb, train, dev, settings}. pairs: minimal pairs that each model is scored on.
    rows: only these and the first. seeds: 0, 1, …: of first weights, data and heads alike. settings: assignments
    for all pre-training runs, such as train.max_steps=2000. out: a folder with one of each row and seed. resume:
    what is finished stays, what was interrupted continues.

    Returns the report, also in out/report.json, with plots in out/figures: each figure of each row with mean and
    deviation, its difference from the first row's, paired by seed, with the p of a paired t-test, and of each pair
    of rows that the paper orders whether that order holds here, is reversed, or cannot be told. InputError for
    what a user can fix.
    """
    out = Path(out)
    chosen = read_recipe(recipe)
    shards = data if isinstance(data, Shards) else Shards.open(data)
    named = _tasks_of(tasks)
    wanted = _rows_of(chosen, rows, recipe)
    asked = {
        "recipe": chosen.model_dump(mode="json"),
        "tasks": {name: task.model_dump(mode="json") for name, task in named.items()},
        "pairs": None if pairs is None else str(pairs),
        "settings": list(settings),
    }
    _begin(out, asked, resume=resume)
    with disk.locked(out, "ablation"):
        write_whole(out / _ASKED, json.dumps(asked, indent=2, ensure_ascii=False) + "\n")
        found: dict[str, list[dict[str, float]]] = {row: [] for row in wanted}
        every = [(seed, row) for seed in range(seeds) for row in wanted]
        for number, (seed, row) in enumerate(every, start=1):
            tell(f"model {number} of {len(every)}: {row}, seed {seed}")
            found[row].append(
                _measured(
                    chosen, row, seed, out / _folder(row) / str(seed), shards, named, pairs, settings, tell
                )
            )
            report = report_of(chosen, found)
            write_report(out, report)
        _plot(out / "figures", report)
    return Report(report, ("title", "figures", "orderings"))


def _plot(folder: Path, report: Mapping[str, Any]) -> None:
    """A PNG of each figure, and of each of the paper's."""
    folder.mkdir(exist_ok=True)
    pictures = {name: seeds_plot(name, rows) for name, rows in report["figures"].items()}
    pictures |= {
        f"paper {name}": paper_plot(name, rows) for name, rows in report["paper"].items() if len(rows) > 1
    }
    for name, picture in pictures.items():
        with disk.new_file(folder / f"{_folder(name)}.png") as beside:
            beside.write_bytes(picture)


def read_recipe(file: str | Path) -> AblationRecipe:
    """A recipe. InputError for what is no recipe, and for a paper's row that is none of the rows."""
    recipe = AblationRecipe.of(read_yaml(file), str(file))
    if len(recipe.rows) < 2:
        raise InputError(f"{file}: a table has at least two rows", "give each below 'rows' what it changes")
    named: dict[str, Mapping[str, Any]] = {**recipe.paper, "task_settings": recipe.task_settings}
    for name, figures in named.items():
        if strange := [row for row in figures if row not in recipe.rows]:
            raise InputError(
                f"{file}: '{name}' names the row '{strange[0]}', which is none",
                f"rows: {', '.join(recipe.rows)}",
            )
    return recipe


def _tasks_of(tasks: str | Path | Mapping[str, Any] | None) -> dict[str, TaskRecipe]:
    if tasks is None:
        return {}
    place = "tasks" if isinstance(tasks, Mapping) else str(tasks)
    values = dict(tasks) if isinstance(tasks, Mapping) else read_yaml(tasks)
    found = {name: TaskRecipe.of(dict(value), f"{place}: {name}") for name, value in values.items()}
    for name, task in found.items():
        for part in ("train", "dev"):
            if not Path(getattr(task, part)).is_file():
                raise InputError(
                    f"{place}: {name}: {part}: there is no file '{getattr(task, part)}'",
                    "name the file there",
                )
    return found


def _rows_of(recipe: AblationRecipe, rows: Sequence[str] | None, place: str | Path) -> list[str]:
    if rows is None:
        return list(recipe.rows)
    if strange := [row for row in rows if row not in recipe.rows]:
        raise InputError(f"{place}: there is no row '{strange[0]}'", f"rows: {', '.join(recipe.rows)}")
    first = next(iter(recipe.rows))
    return [row for row in recipe.rows if row == first or row in rows]


def _begin(out: Path, asked: dict[str, Any], *, resume: bool) -> None:
    """InputError where the folder holds something else, or an ablation of other things."""
    file = out / _ASKED
    if not (resume and file.exists()):
        disk.refuse_filled(out, in_place=True)
        return
    if json.loads(file.read_text(encoding="utf-8")) != json.loads(json.dumps(asked)):
        raise InputError(
            f"{out}: was begun with another recipe, other tasks or settings",
            "resume with the same, or name another --out",
        )


def _folder(row: str) -> str:
    """A row's name as a folder's."""
    return "".join(c if c.isalnum() else "-" for c in row).strip("-") or "row"


def _measured(
    recipe: AblationRecipe,
    row: str,
    seed: int,
    place: Path,
    shards: Shards,
    tasks: Mapping[str, TaskRecipe],
    pairs: str | Path | None,
    settings: Sequence[str],
    tell: Callable[[str], None],
) -> dict[str, float]:
    """A row's figures with one seed."""
    run = place / "pretrain"
    own = _assigned({**recipe.settings, **recipe.rows[row], "train.seed": seed})
    model = pretrain(
        shards,
        run,
        preset=recipe.preset,
        settings=[*own, *settings],
        resume=holds_run(run),
        tell=tell,
    )
    held = model.report["held_out"]
    found = {name: float(held[name]) for name in recipe.losses if name in held}
    for name, task in tasks.items():
        found[name] = _fine_tuned(recipe, row, seed, place / _folder(name), model, task, tell)
    if pairs is not None:
        found[_PAIRS] = _kept(place / "pairs.json", lambda: model.score_pairs(pairs, tell=tell)["accuracy"])
    return found


def _fine_tuned(
    recipe: AblationRecipe,
    row: str,
    seed: int,
    run: Path,
    model: Model,
    task: TaskRecipe,
    tell: Callable[[str], None],
) -> float:
    settings = {**task.settings, **recipe.task_settings.get(row, {}), "train.seed": seed}
    made = finetune(
        task.verb,
        model,
        run,
        train=task.train,
        dev=task.dev,
        settings=_assigned(settings),
        resume=holds_run(run),
        tell=tell,
    )
    return float(made.report["dev"][made.task.decides])


def _kept(file: Path, measure: Callable[[], float]) -> float:
    """What is in the file, or is measured now and put there."""
    if not file.exists():
        write_whole(file, json.dumps(measure()) + "\n")
    return float(json.loads(file.read_text(encoding="utf-8")))


def _assigned(values: Mapping[str, Any]) -> list[str]:
    """Settings by dotted names, or in groups, as assignments; a name is written as it is."""
    flat = as_assignments(dict(values))
    return [
        f"objective.name={json.loads(a.partition('=')[2])}" if a.startswith("objective.name=") else a
        for a in flat
    ]


def report_of(recipe: AblationRecipe, found: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """The table. found: of each row the figures of each seed, in order."""
    rows = [row for row in found if found[row]]
    first = rows[0]
    names = [name for name in found[first][0] if all(name in one for row in rows for one in found[row])]
    figures = {
        name: {
            row: _figure([one[name] for one in found[row]], [one[name] for one in found[first]])
            for row in rows
        }
        for name in names
    }
    return {
        "title": recipe.title,
        "source": recipe.source,
        "baseline": first,
        "seeds": min(len(found[row]) for row in rows),
        "figures": figures,
        "paper": {name: {row: of[row] for row in rows if row in of} for name, of in recipe.paper.items()},
        "orderings": list(_orderings(recipe, rows, names, found)),
    }


def _figure(values: Sequence[float], first: Sequence[float]) -> dict[str, Any]:
    """Mean and deviation, and the difference from the first row's, paired by seed."""
    together = list(zip(values, first, strict=False))
    gains = [value - other for value, other in together]
    return {
        "mean": fmean(values),
        "deviation": stdev(values) if len(values) > 1 else None,
        "values": list(values),
        "difference": fmean(gains),
        "p": _p([value for value, _ in together], [other for _, other in together]),
    }


def _p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Of a paired t-test, two-sided; None where it says nothing: of one seed, or of equal differences."""
    gains = [x - y for x, y in zip(a, b, strict=True)]
    if len(gains) < 2 or max(gains) == min(gains):
        return None
    return float(ttest_rel(a, b).pvalue)


def is_better_low(name: str) -> bool:
    """Whether less of a figure is better."""
    return name.endswith(("loss", "perplexity"))


def _orderings(
    recipe: AblationRecipe,
    rows: Sequence[str],
    names: Sequence[str],
    found: Mapping[str, Sequence[Mapping[str, float]]],
) -> Iterator[dict[str, Any]]:
    """Of each two rows that the paper's figures order: whether ours agree, figure by figure."""
    for a, b in combinations(rows, 2):
        signs = {(of[a] > of[b]) - (of[a] < of[b]) for of in recipe.paper.values() if a in of and b in of}
        if len(signs) != 1 or signs == {0}:
            continue  # the paper's own figures do not agree
        better, worse = (a, b) if signs == {1} else (b, a)
        for name in names:
            pairs = list(zip(found[better], found[worse], strict=False))
            mine, theirs = [one[name] for one, _ in pairs], [other[name] for _, other in pairs]
            gain = fmean(x - y for x, y in zip(mine, theirs, strict=True)) * (
                -1 if is_better_low(name) else 1
            )
            p = _p(mine, theirs)
            apart = p is not None and p < _APART
            verdict = "cannot be told" if not apart else "holds" if gain > 0 else "is reversed"
            yield {"better": better, "worse": worse, "figure": name, "verdict": verdict, "p": p}


def told(report: Mapping[str, Any]) -> str:
    """What came of the paper's orderings, in a sentence."""
    orderings = report["orderings"]
    if not orderings:
        return "the paper's figures order no two of these rows"
    times = {
        word: sum(one["verdict"] == word for one in orderings)
        for word in ("holds", "is reversed", "cannot be told")
    }
    return (
        f"of {counted(len(orderings), 'ordering')} of the paper, figure by figure, {times['holds']} hold at this "
        f"size, {times['is reversed']} are reversed, and {times['cannot be told']} cannot be told with "
        f"{counted(report['seeds'], 'seed')} (p < {_APART} in a paired t-test)"
    )
