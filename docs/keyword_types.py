"""Write the types of keyword settings, from the settings, into src/bertsmith/keywords.py.

Run it after a change of settings: `python docs/keyword_types.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from bertsmith.corpus.checks.check import CheckOptions
from bertsmith.finetuning.run import finetune
from bertsmith.finetuning.settings import OWN_ARGUMENTS, settings_type
from bertsmith.io.documents import Reading
from bertsmith.predecessors.ngram_settings import NgramSettings
from bertsmith.predecessors.word2vec import Word2VecSettings
from bertsmith.pretraining.extend_vocabulary import Choice
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings
from bertsmith.tasks.registry import TASKS, get_task

ROOT = Path(__file__).parents[1]
MODULE = ROOT / "src" / "bertsmith" / "keywords.py"
HEADER = '''"""Types of keyword settings, with which editors complete and check the names.

`python docs/keyword_types.py` writes this file from the settings.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict
'''


def keyword_types() -> str:
    """Return the module's source."""
    pretraining = _setting_types(PretrainSettings)
    finetuning: dict[str, str] = {}
    for name in TASKS:
        for keyword, kind in _setting_types(settings_type(get_task(name))).items():
            finetuning[keyword] = _union(finetuning.get(keyword, kind), kind)
    shared = {name: kind for name, kind in pretraining.items() if finetuning.get(name) == kind}
    reading = _field_types(Reading)
    classes = [
        ("ReadingKeywords", "TypedDict", "Rules by which files become documents", reading),
        ("CheckKeywords", "ReadingKeywords", "Options of a check of a corpus", _field_types(CheckOptions)),
        ("ExtendKeywords", "ReadingKeywords", "Rules for added words", _field_types(Choice)),
        ("TrainingKeywords", "TypedDict", "Settings of both kinds of training", shared),
        ("PretrainKeywords", "TrainingKeywords", "Settings of pre-training", _without(pretraining, shared)),
        ("FinetuneKeywords", "TrainingKeywords", "Settings of fine-tuning", _without(finetuning, shared)),
        ("NgramKeywords", "TypedDict", "Settings of n-gram models", _setting_types(NgramSettings)),
        ("WordVectorKeywords", "TypedDict", "Settings of word vectors", _setting_types(Word2VecSettings)),
    ]
    command = ["ruff", "format", "--stdin-filename", str(MODULE), "-"]
    text = "\n\n".join([HEADER, *(_typed_dict(*parts) for parts in classes)])
    return subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout


def _setting_types(cls: type[Settings]) -> dict[str, str]:
    """Return the type of each setting that is no argument of `finetune` by its last name."""
    names = [(name, field) for name, field in cls.names() if name.partition(".")[0] not in OWN_ARGUMENTS]
    kinds = {name.rpartition(".")[2]: _source(field.annotation) for name, field in names}
    return _without(kinds, inspect.signature(finetune).parameters)


def _field_types(cls: type) -> dict[str, str]:
    """Return the type of each field of a dataclass but for fields that are dataclasses."""
    hints = get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    return {name: _source(hints[name]) for name in fields if not dataclasses.is_dataclass(hints[name])}


def _source(annotation: Any) -> str:
    """Return the source of a type, with sequences for tuples, and without constraints."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _source(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is tuple:
        return f"Sequence[{_union(*(_source(item) for item in arguments if item is not Ellipsis))}]"
    if arguments and origin.__name__ in ("Union", "UnionType"):
        return _union(*map(_source, arguments))
    if annotation is type(None):
        return "None"
    return annotation.__name__ if annotation in (bool, float, int, str) else "Any"


def _union(*kinds: str) -> str:
    """Return the union of types, each named once."""
    return " | ".join(dict.fromkeys(part for kind in kinds for part in kind.split(" | ")))


def _typed_dict(name: str, base: str, summary: str, kinds: Mapping[str, str]) -> str:
    """Return the source of a TypedDict without required keys."""
    lines = [f"class {name}({base}, total=False):", f'    """{summary}."""', ""]
    return "\n".join([*lines, *(f"    {keyword}: {kind}" for keyword, kind in kinds.items())])


def _without(kinds: Mapping[str, str], excluded: Mapping[str, Any]) -> dict[str, str]:
    return {name: kind for name, kind in kinds.items() if name not in excluded}


if __name__ == "__main__":
    MODULE.write_text(keyword_types(), encoding="utf-8")
