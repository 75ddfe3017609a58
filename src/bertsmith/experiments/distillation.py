"""`bertsmith distill`: a smaller student of a pre-trained model, on prepared shards; or of a fine-tuned one, on
the examples of its task."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import FinetuneSettings
from bertsmith.finetuning.settings import settings_type as finetune_settings
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import get_family
from bertsmith.objectives.distillation import check_tokenizer
from bertsmith.pretraining.resolve_settings import settings_type
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Changes, resolve
from bertsmith.tasks.task import Task
from bertsmith.training.distributed import rank_group

logger = logging.getLogger(__name__)

_STUDENTS = {"bert": "distilbert"}  # of which family a teacher's student is, where it is another one


def distill(
    data: Shards | str | Path,
    output_dir: str | Path,
    teacher: str | Path | Model,
    *,
    layers: int | None = None,
    minutes: float | None = None,
    settings: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    begun: float | None = None,
    **keywords: Any,
) -> Model:
    """Train a student of a pre-trained model on a corpus (Sanh et al. 2019).

    data: shards prepared with the teacher's tokenizer. teacher: a pre-trained run, a model folder or a published
    name, with a masked-LM head. layers: the student's; by default half of the teacher's. It is as wide as the
    teacher and begins with some of its layers; a BERT's student is a DistilBERT, another family's one of its own.
    settings and keywords: as `pretrain` takes them; `objective` has the weights of the three parts of the loss.
    All else is as in `pretrain`, which this is with the objective "distil".

    Returns the student, with its report. InputError where teacher and data, or teacher and settings, do not fit.
    """
    with rank_group():
        folder = teacher.folder if isinstance(teacher, Model) else read_folder(locate(teacher))
        shards = data if isinstance(data, Shards) else Shards.open(data)
        check_tokenizer(folder, shards.tokenizer)
        preset, own = student_settings(folder, layers)
        changes = resolve(settings_type("distil"), settings, keywords, distill)
        return pretrain(
            shards,
            output_dir,
            preset=preset,
            minutes=minutes,
            settings={**own, **changes},
            resume=resume,
            overwrite=overwrite,
            begun=begun,
        )


def distill_task(
    teacher: str | Path | Model,
    model: str | Path | Model,
    output_dir: str | Path,
    *,
    train: Any,
    validation: Any,
    settings: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    **keywords: Any,
) -> Model:
    """Fine-tune a model for the task of a fine-tuned teacher, on examples and on the teacher's answers to them.

    teacher: a fine-tuned run or model folder. model: the student as it begins, with the teacher's vocabulary, such
    as a run of `distill`. train, validation, settings, keywords: as in `finetune`, with `teacher.model`
    set; the group `teacher` has the temperature and the two weights. The student reads files as the teacher does.

    Returns the student, with its report. InputError where the two do not fit.
    """
    known = teacher if isinstance(teacher, Model) else load(teacher)
    task = known.task
    own = {"teacher": {"model": str(known.path)}, "task": _as_the_teacher_reads(task)}
    changes = resolve(finetune_settings(type(task)), settings, keywords, distill_task)
    return finetune(
        task.name,
        model,
        output_dir,
        train=train,
        validation=validation,
        settings={**FinetuneSettings.dotted(own), **changes},
        resume=resume,
        overwrite=overwrite,
    )


def _as_the_teacher_reads(task: Task) -> dict[str, Any]:
    """The settings of its task that are not the defaults."""
    usual = type(task.settings)().model_dump(mode="json")
    return {
        name: value
        for name, value in task.settings.model_dump(mode="json").items()
        if value != usual.get(name)
    }


def student_settings(teacher: ModelFolder, layers: int | None = None) -> tuple[str, dict[str, Any]]:
    """A preset of the student's family and the settings that make it this teacher's; these set all sizes."""
    sizes = student_of(teacher.config, layers)
    objective = {"name": "distil", "teacher": str(teacher.path)}
    preset = next(iter(get_family(sizes["model_type"]).presets))
    return preset, PretrainSettings.dotted({"objective": objective, "model": sizes, "data": _data_of(sizes)})


def student_of(teacher: ModelConfig, layers: int | None) -> dict[str, Any]:
    """The settings of a teacher's student. InputError where it would not be smaller."""
    number = teacher.num_hidden_layers // 2 if layers is None else layers
    if not 1 <= number <= teacher.num_hidden_layers:
        raise InputError(
            "layers_invalid",
            f"a student with {pluralize(number, 'layer')} is impossible, because the teacher has "
            f"{teacher.num_hidden_layers}",
            argument="layers",
            hint=f"give a number from 1 to {teacher.num_hidden_layers}",
        )
    kind = get_family(_STUDENTS.get(teacher.model_type, teacher.model_type))
    groups = min(teacher.share_groups, number)
    own = {"model_type": kind.model_type, "num_hidden_layers": number, "share_groups": groups}
    return {**teacher.model_dump(), **kind.structure, **own}


def _data_of(sizes: dict[str, Any]) -> dict[str, Any]:
    """What the student's family is trained on, and nothing asked of pairs."""
    usual = {"instances": "full_sentences", "sentence_task": "none"}
    return {**get_family(sizes["model_type"]).pretraining, **usual}
