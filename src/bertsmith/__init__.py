"""bertsmith: from a folder of text to a BERT of your own.

What the command line does, Python does with the same names. Each name is imported when first used, so that
`import bertsmith` costs nothing.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsmith.errors import BertsmithError as BertsmithError
    from bertsmith.errors import InputError as InputError
    from bertsmith.models.config import ModelConfig as ModelConfig
    from bertsmith.models.encoder import Encoder as Encoder
    from bertsmith.packed import Packed as Packed
    from bertsmith.shards.prepare import prepare as prepare
    from bertsmith.shards.shards import Shards as Shards
    from bertsmith.tokenizer.tokenizer import Tokenizer as Tokenizer
    from bertsmith.vocabulary.learn import train_tokenizer as train_tokenizer
    from bertsmith.workflows.check import check_corpus as check_corpus
    from bertsmith.workflows.extend import extend_tokenizer as extend_tokenizer
    from bertsmith.workflows.finetune import finetune as finetune
    from bertsmith.workflows.info import info as info
    from bertsmith.workflows.inspect import inspect_tokenizers as inspect_tokenizers
    from bertsmith.workflows.predict import Model as Model
    from bertsmith.workflows.predict import load as load
    from bertsmith.workflows.pretrain import pretrain as pretrain
    from bertsmith.workflows.show import show_instance as show_instance

_HOMES = {
    "BertsmithError": "errors",
    "Encoder": "models.encoder",
    "InputError": "errors",
    "Model": "workflows.predict",
    "ModelConfig": "models.config",
    "Packed": "packed",
    "Shards": "shards.shards",
    "Tokenizer": "tokenizer.tokenizer",
    "check_corpus": "workflows.check",
    "extend_tokenizer": "workflows.extend",
    "finetune": "workflows.finetune",
    "info": "workflows.info",
    "inspect_tokenizers": "workflows.inspect",
    "load": "workflows.predict",
    "prepare": "shards.prepare",
    "pretrain": "workflows.pretrain",
    "show_instance": "workflows.show",
    "train_tokenizer": "vocabulary.learn",
}

__version__ = version("bertsmith")
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsmith' has no attribute '{name}'")
    return getattr(importlib.import_module(f"bertsmith.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
