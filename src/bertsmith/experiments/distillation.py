"""Train a smaller student of a pre-trained model on token shards, or of a fine-tuned model on its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import FinetuneSettings
from bertsmith.finetuning.settings import settings_type as finetune_settings
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.keywords import FinetuneKeywords, PretrainKeywords
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import get_family
from bertsmith.pretraining.resolve_settings import settings_type
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Changes, resolve
from bertsmith.training.distributed import rank_group

_STUDENT_FAMILIES = {"bert": "distilbert"}  # other families' students are of the same family


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
    start_time: float | None = None,
    **keywords: Unpack[PretrainKeywords],
) -> Model:
    """Train a student of a pre-trained model on a corpus (Sanh et al. 2019).

    The student has the teacher's hidden size and starts with some of its layers. The student of a BERT is a
    DistilBERT.

    Args:
        data: Token shards, prepared with the teacher's tokenizer.
        output_dir: The run folder.
        teacher: A run, a model folder, or a published name, with a masked-LM head.
        layers: The student's number of layers; by default half of the teacher's.
        minutes: The time of training, as in `pretrain`.
        settings: Changed settings; the group `objective` has the weights of the three losses.
        resume: As in `pretrain`.
        overwrite: As in `pretrain`.
        start_time: As in `pretrain`.
        **keywords: Settings by name, as in `pretrain`.

    Returns:
        The student, with its report.

    Raises:
        InputError: The teacher does not fit the data or the settings.
    """
    with rank_group():
        folder = teacher.folder if isinstance(teacher, Model) else read_folder(locate(teacher))
        shards = data if isinstance(data, Shards) else Shards.open(data)
        preset, student = student_settings(folder, layers)
        changes = {**student, **resolve(settings_type("distil"), settings, keywords, distill)}
        options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "start_time": start_time}
        return pretrain(shards, output_dir, preset=preset, minutes=minutes, settings=changes, **options)


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
    **keywords: Unpack[FinetuneKeywords],
) -> Model:
    """Fine-tune a student on labels and on the outputs of a fine-tuned teacher.

    Args:
        teacher: A fine-tuned run or model folder.
        model: The student before fine-tuning, with the teacher's vocabulary, such as a run of `distill`.
        output_dir: The run folder.
        train: The training data, as in `finetune`; read with the teacher's settings.
        validation: The validation data, as in `finetune`.
        settings: Changed settings; the group `teacher` has the temperature and the weights of both losses.
        resume: As in `finetune`.
        overwrite: As in `finetune`.
        **keywords: Settings by name, as in `finetune`.

    Returns:
        The student, with its report.

    Raises:
        InputError: The student does not fit the teacher.
    """
    teacher_model = load(teacher)
    task = teacher_model.task
    changed_by_teacher = task.settings.model_dump(mode="json", exclude_defaults=True)
    student = {"teacher": {"model": str(teacher_model.path)}, "task": changed_by_teacher}
    changes = resolve(finetune_settings(task.declaration), settings, keywords, distill_task)
    changes = {**FinetuneSettings.dotted(student), **changes}
    data = {"train": train, "validation": validation}
    return finetune(
        task.name, model, output_dir, **data, settings=changes, resume=resume, overwrite=overwrite
    )


def student_settings(teacher: ModelFolder, layers: int | None = None) -> tuple[str, dict[str, Any]]:
    """Return a preset of the student's family, and the settings of the student: objective, sizes, and data."""
    sizes = _student_sizes(teacher.config, layers)
    family = get_family(sizes["model_type"])
    settings = {
        "objective": {"name": "distil", "teacher": str(teacher.path)},
        "model": sizes,
        "data": {**family.pretraining, "instances": "full_sentences", "sentence_task": "none"},
    }
    return next(iter(family.presets)), PretrainSettings.dotted(settings)


def _student_sizes(teacher: ModelConfig, layers: int | None) -> dict[str, Any]:
    num_layers = teacher.num_hidden_layers // 2 if layers is None else layers
    if not 1 <= num_layers <= teacher.num_hidden_layers:
        message = (
            f"a student with {pluralize(num_layers, 'layer')} is impossible, because the teacher has "
            f"{teacher.num_hidden_layers}"
        )
        hint = f"give a number from 1 to {teacher.num_hidden_layers}"
        raise InputError("layers_invalid", message, argument="layers", hint=hint)
    family = get_family(_STUDENT_FAMILIES.get(teacher.model_type, teacher.model_type))
    return {
        **teacher.model_dump(),
        **family.structure,
        "model_type": family.model_type,
        "num_hidden_layers": num_layers,
        "share_groups": min(teacher.share_groups, num_layers),
    }
