"""`bertsmith adapt`: pre-train a model further on a corpus, and measure on a task what that was worth.

The way is that of four other verbs, one after the other, each with a folder of its own: `tokenizer extend` (where
words are asked for), `data prepare`, `pretrain --model`, and `finetune` from the model before and after with the
same seeds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, option
from bertsmith.experiments.ablation import options_as_settings, refuse_seed
from bertsmith.finetuning.data import gather
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import new_settings, settings_type
from bertsmith.formatting import pluralize
from bertsmith.inference.compare import compare
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.io.files import Notes, find_files
from bertsmith.io.memory import Sources, as_files
from bertsmith.notebook import Report
from bertsmith.pretraining.base_model import settings_from
from bertsmith.pretraining.extend_vocabulary import RECORD as EXTENSION
from bertsmith.pretraining.extend_vocabulary import Choice, extend_tokenizer
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import holds_run, keeping_runs, write_report, write_whole
from bertsmith.settings import Changes
from bertsmith.tasks.task import task_type

logger = logging.getLogger(__name__)

_ASKED = "adapt.json"
_BEFORE, _AFTER = "before", "after"


def adapt(
    model: str | Path,
    corpus: Sources,
    output_dir: str | Path,
    *,
    task: str,
    train: str | Path,
    validation: str | Path,
    words: int = 0,
    seeds: int = 1,
    minutes: float | None = None,
    settings: Changes = (),
    task_settings: Changes = (),
    resume: bool = False,
) -> Report:
    """Pre-train a model further on files of text, fine-tune it before and after, and compare.

    model: a run, a model folder or a published name, with a masked-LM head. corpus: as in `prepare`. task, train,
    validation: as in `finetune`. words: number of words of the corpus to add to the vocabulary. seeds: how often
    each of both is fine-tuned, with seeds 0, 1, …; minutes: that pre-training may take. settings, task_settings:
    for `pretrain` and for `finetune`. output_dir: the folder for all of it: model/ is the adapted model's run,
    before-0/ and after-0/ those of the task. resume: what is finished stays, what was interrupted continues.

    Returns the report, also in output_dir/report.json: the validation score before and after for each seed, its
    gain, and each pair's comparison (`compare`: paired bootstrap and randomization).
    InputError for what a user can fix.
    """
    out, changes = Path(output_dir), PretrainSettings.dotted(settings)
    task_changes = settings_type(task_type(task)).dotted(task_settings)
    if seeds < 1:
        raise InputError(
            "seeds_too_few",
            f"{seeds} is less than 1",
            argument="seeds",
            hint="give the number of runs per model",
        )
    asked = {
        "model": str(model),
        "corpus": [str(file) for file in ([corpus] if isinstance(corpus, str | Path) else corpus)],
        "task": task,
        "train": str(train),
        "validation": str(validation),
        "words": words,
        "settings": changes,
        "task_settings": task_changes,
    }
    _begin(out, asked, resume=resume)
    base = load(model)
    _check_settings(base, changes, task_changes)
    _read_all(corpus, task, train, validation, base, task_changes)
    with atomic.folder_lock(out, "adaptation"), keeping_runs(out):
        write_whole(out / _ASKED, json.dumps(asked, indent=2, ensure_ascii=False) + "\n")
        if words and not (out / "extended" / EXTENSION).exists():
            logger.info("adding %s of the corpus to the vocabulary", pluralize(words, "word"))
            extend_tokenizer(corpus, out / "extended", model=model, choice=Choice(words=words))
        begin = load(out / "extended") if words else base
        shards = _prepared(corpus, begin, out / "shards")
        logger.info("pre-training: %s", out / "model")
        adapted = pretrain(
            shards,
            out / "model",
            model=begin,
            minutes=minutes,
            settings=changes,
            resume=holds_run(out / "model"),
        )
        rows = [
            _scored(out, seed, base, adapted, task, train, validation, task_changes) for seed in range(seeds)
        ]
        found = _report(asked, adapted, rows)
        write_report(out, found)
    return Report(found, ("score", "before", "after", "gain"))


# What each step depends on, by the folder that it leaves: other arguments may change until that is there.
_STEPS = {
    "extended": ("model", "corpus", "words"),
    "shards": ("model", "corpus", "words"),
    "model": ("model", "corpus", "words", "settings"),
    f"{_BEFORE}-0": ("model", "task", "train", "validation", "task_settings"),
}


def _begin(out: Path, asked: dict[str, Any], *, resume: bool) -> None:
    """InputError where the folder holds something else, or steps that were made with other arguments."""
    file = out / _ASKED
    made = [step for step in _STEPS if (out / step).exists()]
    if not file.exists() or (made and not resume):
        atomic.check_output_folder(out, in_place=True)
        return
    try:
        before = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise InputError(
            "file_damaged",
            "the file is damaged",
            location=file,
            argument="output_dir",
            hint=f"choose another folder with {option('output_dir')}",
        ) from None
    for name in dict.fromkeys(name for step in made for name in _STEPS[step]):
        if before.get(name) != json.loads(json.dumps(asked[name])):
            raise InputError(
                "adaptation_differs",
                f"this run was started with {option(name, before.get(name))}, not {asked[name]}",
                location=out,
                argument=name,
                hint=f"resume with the same arguments, or choose another folder with {option('output_dir')}",
            )


def _check_settings(base: Model, settings: Mapping[str, Any], task_settings: Mapping[str, Any]) -> None:
    """InputError for settings that pre-training does not have, and for the seed of fine-tuning, which each run
    has of its own."""
    settings_from(base, {}, {}, None, settings, base.tokenizer)
    refuse_seed(task_settings, None, "task_settings")


def _read_all(
    corpus: Sources,
    task: str,
    train: str | Path,
    validation: str | Path,
    base: Model,
    settings: Mapping[str, Any],
) -> None:
    """InputError for files that cannot be read, before an hour is spent on the first of them."""
    find_files(as_files(corpus), Notes())
    kind = task_type(task)
    files = {"train": str(train), "validation": str(validation)}
    chosen = new_settings(kind, base, files, None, {}, settings)
    with options_as_settings(task):
        gather(kind.variant(chosen.task), chosen.files, chosen.task)


def _prepared(corpus: Sources, model: Model, out: Path) -> Shards:
    if (out / "manifest.json").exists():
        return Shards.open(out)
    return prepare(corpus, model.tokenizer, out)


def _scored(
    out: Path,
    seed: int,
    base: Model,
    adapted: Model,
    task: str,
    train: str | Path,
    validation: str | Path,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Both models fine-tuned with a seed, and compared on the validation data."""
    runs = []
    for name, model in ((_BEFORE, base), (_AFTER, adapted)):
        run = out / f"{name}-{seed}"
        logger.info("fine-tuning: %s", run)
        own = {**settings, "train.seed": seed}
        runs.append(
            finetune(
                task, model, run, train=train, validation=validation, settings=own, resume=holds_run(run)
            )
        )
    before, after = runs
    score = before.task.decides
    return {
        "seed": seed,
        "score": score,
        _BEFORE: before.report["dev"][score],
        _AFTER: after.report["dev"][score],
        "baseline": before.report["baseline"].get(score),
        "baseline_name": before.report["baseline_name"],
        "comparison": compare(before, after, validation)["scores"][score],
    }


def _report(asked: dict[str, Any], adapted: Model, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    gains = [row[_AFTER] - row[_BEFORE] for row in rows]
    return {
        **asked,
        "score": rows[0]["score"],
        "baseline_name": rows[0]["baseline_name"],
        _BEFORE: fmean(row[_BEFORE] for row in rows),
        _AFTER: fmean(row[_AFTER] for row in rows),
        "gain": fmean(gains),
        "deviation": stdev(gains) if len(gains) > 1 else None,
        "runs": list(rows),
        "pretraining": {
            name: adapted.report[name]
            for name in ("steps", "tokens", "seconds", "held_out")
            if name in adapted.report
        },
    }
