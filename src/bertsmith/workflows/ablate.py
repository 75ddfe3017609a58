"""`bertsmith ablate`: a table of a paper at one's own size: models that differ in one thing, pre-trained,
fine-tuned and compared over several seeds.

A recipe names the rows, each by the settings that it changes, and has the paper's figures. Each pre-training run
and each fine-tuning is an ordinary one in a folder of its own, so that what is finished stays.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import ttest_rel

from bertsmith import console, disk, machine
from bertsmith.display import Report
from bertsmith.errors import InputError
from bertsmith.models.config import encoder_terms
from bertsmith.models.family import preset
from bertsmith.place import is_processor
from bertsmith.reports.ablation import paper_plot, seeds_plot
from bertsmith.settings import read_yaml
from bertsmith.shards.shards import Shards
from bertsmith.wording import counted
from bertsmith.workflows.ablation import (
    PRETRAIN,
    AblationRecipe,
    Measurement,
    TaskRecipe,
    assigned,
    check_task,
    folder_of,
    pretrained_as,
    read_recipe,
    refuse_one_folder,
)
from bertsmith.workflows.pretrain_settings import USUAL_PRESET
from bertsmith.workflows.run import write_report, write_whole
from bertsmith.workflows.side_by_side import side_by_side

_ASKED = "ablation.json"
_APART = 0.05  # the largest p at which two rows are said to be told apart
_SMALL = 30e6  # parameters of an encoder: larger ones keep several cores busy by themselves


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
    jobs: int | None = None,
    resume: bool = False,
    tell: Callable[[str], None] = console.tell,
) -> Report:
    """Pre-train each row of a recipe with each seed, fine-tune it for each task, and set it beside the paper.

    recipe: YAML as in recipes/ablations/. data: prepared shards. tasks: what each model is fine-tuned for, a YAML
    file or a mapping of names to {verb, train, dev, settings}. pairs: minimal pairs that each model is scored on.
    rows: only these and the first. seeds: 0, 1, …: of first weights, data and heads alike. settings: assignments
    for all pre-training runs, such as train.max_steps=2000. out: a folder with one of each row and seed. jobs:
    models at a time, each in a process of its own with its share of the cores; None: of small models as many as
    there are cores, else one. resume: what is finished stays, what was interrupted continues.

    Rows that change the same of pre-training, and differ in fine-tuning, share a model that is pre-trained once.

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
    for row in wanted:
        for task in named.values():
            check_task(chosen, row, task, recipe)
    scored_on = None if pairs is None else str(pairs)
    asked = {
        "recipe": chosen.model_dump(mode="json"),
        "tasks": {name: task.model_dump(mode="json") for name, task in named.items()},
        "pairs": scored_on,
        "settings": list(settings),
    }
    works = [
        Measurement(chosen, some, seed, out, shards.folder, named, scored_on, settings)
        for seed in range(seeds)
        for some in _together(chosen, wanted)
    ]
    at_once = min(jobs or _jobs(chosen, wanted, settings), len(works))
    _begin(out, asked, resume=resume)
    with disk.locked(out, "ablation"):
        write_whole(out / _ASKED, json.dumps(asked, indent=2, ensure_ascii=False) + "\n")
        found: dict[str, dict[int, dict[str, float]]] = {row: {} for row in wanted}
        for work, figures in _measured(works, at_once, tell):
            for row, of_row in figures.items():
                found[row][work.seed] = of_row
            if len(found[wanted[0]]):
                write_report(out, report_of(chosen, found))
        report = report_of(chosen, found)
        _plot(out / "figures", report)
    return Report(report, ("title", "figures", "orderings"))


def _together(recipe: AblationRecipe, rows: Sequence[str]) -> list[list[str]]:
    """The rows in groups that share pre-trained models: one and the same, or one beside another."""
    groups: list[tuple[set[str], list[str]]] = []
    for row in rows:
        models = {pretrained_as(recipe, one) for one in (row, recipe.beside.get(row, row))}
        touched = [group for group in groups if group[0] & models]
        merged = (
            models.union(*(group[0] for group in touched)),
            [*(one for group in touched for one in group[1]), row],
        )
        groups = [*(group for group in groups if group not in touched), merged]
    return [group[1] for group in groups]


def _jobs(recipe: AblationRecipe, rows: Sequence[str], settings: Sequence[str]) -> int:
    """As many models at a time as there are cores where all are small and computed on them, else one."""
    every = [[*assigned({**recipe.settings, **recipe.rows[row]}), *settings] for row in rows]
    if not all(is_processor(_device(of_row)) for of_row in every):
        return 1
    sizes = (
        preset(recipe.preset or USUAL_PRESET).changed(
            [one.removeprefix("model.") for one in of_row if one.startswith("model.")]
        )
        for of_row in every
    )
    largest = max(sum(term.size for term in encoder_terms(size)) for size in sizes)
    return machine.allowed_cores() if largest <= _SMALL else 1


def _device(settings: Sequence[str]) -> str:
    """The device that a row's settings ask for; the last of several decides."""
    asked = [one.partition("=")[2].strip("\"'") for one in settings if one.startswith("train.device=")]
    return asked[-1] if asked else "auto"


def _measured(
    works: Sequence[Measurement], at_once: int, tell: Callable[[str], None]
) -> Iterator[tuple[Measurement, dict[str, dict[str, float]]]]:
    """Each with its figures, when it is done."""
    titles = [f"{' and '.join(work.rows)}, seed {work.seed}" for work in works]
    if at_once == 1:
        for number, (work, title) in enumerate(zip(works, titles, strict=True), start=1):
            tell(f"model {number} of {len(works)}: {title}")
            yield work, work.measured(tell)
        return
    logs = [work.place(work.rows[0]) / "output.txt" for work in works]
    asked = [work.to_json() for work in works]
    for number, answer in side_by_side("bertsmith.workflows.ablation", asked, titles, logs, at_once, tell):
        yield works[number], answer


def _plot(folder: Path, report: Mapping[str, Any]) -> None:
    """A PNG of each figure, and of each of the paper's."""
    folder.mkdir(exist_ok=True)
    pictures = {name: seeds_plot(name, rows) for name, rows in report["figures"].items()}
    pictures |= {
        f"paper {name}": paper_plot(name, rows) for name, rows in report["paper"].items() if len(rows) > 1
    }
    for name, picture in pictures.items():
        with disk.new_file(folder / f"{folder_of(name)}.png") as beside:
            beside.write_bytes(picture)


def _tasks_of(tasks: str | Path | Mapping[str, Any] | None) -> dict[str, TaskRecipe]:
    if tasks is None:
        return {}
    place = "tasks" if isinstance(tasks, Mapping) else str(tasks)
    values = dict(tasks) if isinstance(tasks, Mapping) else read_yaml(tasks)
    found = {name: TaskRecipe.of(dict(value), f"{place}: {name}") for name, value in values.items()}
    refuse_one_folder(found, place)
    if taken := [name for name in found if folder_of(name) == PRETRAIN]:
        raise InputError(
            f"{place}: '{taken[0]}' would stand in the folder {PRETRAIN}, which is the model's own",
            "give the task another name",
        )
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


def report_of(
    recipe: AblationRecipe, found: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[str, Any]:
    """The table. found: of each row the figures of each seed that is done; the first row has one at least."""
    rows = [row for row in found if found[row]]
    first = rows[0]
    names = list(next(iter(found[first].values())))
    having = {
        name: [row for row in rows if all(name in one for one in found[row].values())] for name in names
    }
    figures = {
        name: {row: _figure(name, found[row], found[first]) for row in having[name]}
        for name in names
        if len(having[name]) > 1 or len(rows) == 1
    }
    return {
        "title": recipe.title,
        "source": recipe.source,
        "baseline": first,
        "seeds": min(len(found[row]) for row in rows),
        "figures": figures,
        "paper": {name: {row: of[row] for row in rows if row in of} for name, of in recipe.paper.items()},
        "orderings": list(_orderings(recipe, having, found)),
    }


def _paired(
    name: str, a: Mapping[int, Mapping[str, float]], b: Mapping[int, Mapping[str, float]]
) -> tuple[list[float], list[float]]:
    """A figure of two rows, with the seeds that both have."""
    seeds = sorted(a.keys() & b.keys())
    return [a[seed][name] for seed in seeds], [b[seed][name] for seed in seeds]


def _figure(
    name: str, row: Mapping[int, Mapping[str, float]], first: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """Mean and deviation, and the difference from the first row's, paired by seed."""
    values = [row[seed][name] for seed in sorted(row)]
    own, others = _paired(name, row, first)
    gains = [value - other for value, other in zip(own, others, strict=True)]
    return {
        "mean": fmean(values),
        "deviation": stdev(values) if len(values) > 1 else None,
        "values": values,
        "difference": fmean(gains) if gains else None,
        "p": _p(own, others),
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
    having: Mapping[str, Sequence[str]],
    found: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> Iterator[dict[str, Any]]:
    """Of each two rows that the paper's figures order: whether ours agree, figure by figure."""
    for a, b in combinations([row for row in found if found[row]], 2):
        signs = {(of[a] > of[b]) - (of[a] < of[b]) for of in recipe.paper.values() if a in of and b in of}
        if len(signs) != 1 or signs == {0}:
            continue  # the paper's own figures do not agree
        better, worse = (a, b) if signs == {1} else (b, a)
        for name in [name for name, rows in having.items() if a in rows and b in rows]:
            mine, theirs = _paired(name, found[better], found[worse])
            if not mine:
                continue
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
        return "no two of these rows have the same order in all of the paper's figures, so none is checked"
    times = Counter(one["verdict"] for one in orderings)
    return (
        f"{counted(len(orderings), 'ordering')} of the paper checked, figure by figure, with "
        f"{counted(report['seeds'], 'seed')} (p < {_APART} in a paired t-test): {times['holds']} held, "
        f"{times['is reversed']} reversed, {times['cannot be told']} not to be told from chance"
    )
