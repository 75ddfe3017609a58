"""bertsmith: from a folder of text to a BERT model.

train_tokenizer     learn a vocabulary from text
prepare, pretrain   tokenize a corpus; train a BERT on it (plan_pretraining)
distill, adapt      train a student (distill_task: of a task); adapt to text
finetune            train for a task (finetune_repeatedly, finetune_glue,
                    find_rate; create_model: without pre-training)
ablate, baselines   compare recipes; compare BERT with the models before it
compare, ensemble   test two models; answer by several: Ensemble
load, info, search  open a run as a Model; describe a folder; query an index
list_runs           the scores of runs; quickstart: all steps at once
card, push, serve   a model card, an upload, a server; export_model
train_ngram         NgramModel; train_word_vectors: WordVectors;
                    distill_static_vectors: StaticModel
Model               predict, evaluate, explain, fill_mask, score, embed, …
check_corpus        (show_instance, inspect_tokenizers, extend_tokenizer)
Texts, Reading      texts in memory; how to read files; CheckOptions; Packed
Tokenizer, Shards, Encoder, ModelConfig, presets, count_parameters
BertsmithError      InputError, MachineError, Stopped

Data is one path, several paths, or in memory: data frames, tables,
datasets, dicts of columns, lists of dicts. Settings are keywords:
pretrain(shards, "bert", num_train_epochs=3). Details: help(bs.prepare).
"""

# Each name is imported on first use, so that `import bertsmith` is fast. `python -m bertsmith` reads this
# file before __main__.py, so nothing is imported here that Python itself does not import before.

import importlib
import sys

TYPE_CHECKING = False  # type checkers take it for typing's
if TYPE_CHECKING:
    __version__: str
    from bertsmith.corpus.checks.check import CheckOptions as CheckOptions
    from bertsmith.corpus.prepare import prepare as prepare
    from bertsmith.corpus.shards import Shards as Shards
    from bertsmith.demo.quickstart import quickstart as quickstart
    from bertsmith.errors import BertsmithError as BertsmithError
    from bertsmith.errors import InputError as InputError
    from bertsmith.errors import MachineError as MachineError
    from bertsmith.errors import Stopped as Stopped
    from bertsmith.experiments.ablation import ablate as ablate
    from bertsmith.experiments.adaptation import adapt as adapt
    from bertsmith.experiments.baselines import baselines as baselines
    from bertsmith.experiments.distillation import distill as distill
    from bertsmith.experiments.distillation import distill_task as distill_task
    from bertsmith.experiments.glue import finetune_glue as finetune_glue
    from bertsmith.experiments.multirun import finetune_repeatedly as finetune_repeatedly
    from bertsmith.export.card import card as card
    from bertsmith.export.export import export_model as export_model
    from bertsmith.export.push import push as push
    from bertsmith.finetuning.lr_finder import find_rate as find_rate
    from bertsmith.finetuning.run import finetune as finetune
    from bertsmith.inference.ensemble import Ensemble as Ensemble
    from bertsmith.inference.ensemble import ensemble as ensemble
    from bertsmith.inference.model import Model as Model
    from bertsmith.inference.model import load as load
    from bertsmith.inference.search import search as search
    from bertsmith.inference.significance import compare as compare
    from bertsmith.inspection.check import check_corpus as check_corpus
    from bertsmith.inspection.info import info as info
    from bertsmith.inspection.inspect import inspect_tokenizers as inspect_tokenizers
    from bertsmith.inspection.runs import list_runs as list_runs
    from bertsmith.inspection.show import show_instance as show_instance
    from bertsmith.io.documents import Reading as Reading
    from bertsmith.io.sources import Texts as Texts
    from bertsmith.models.config import ModelConfig as ModelConfig
    from bertsmith.models.encoder import Encoder as Encoder
    from bertsmith.models.family import presets as presets
    from bertsmith.models.parameter_count import count_parameters as count_parameters
    from bertsmith.packed import Packed as Packed
    from bertsmith.predecessors.ngram import NgramModel as NgramModel
    from bertsmith.predecessors.ngram import train_ngram as train_ngram
    from bertsmith.predecessors.static_vectors import StaticModel as StaticModel
    from bertsmith.predecessors.static_vectors import distill_static_vectors as distill_static_vectors
    from bertsmith.predecessors.word2vec import train_word_vectors as train_word_vectors
    from bertsmith.predecessors.word_vectors import WordVectors as WordVectors
    from bertsmith.pretraining.extend_vocabulary import extend_tokenizer as extend_tokenizer
    from bertsmith.pretraining.plan import plan_pretraining as plan_pretraining
    from bertsmith.pretraining.run import pretrain as pretrain
    from bertsmith.pretraining.untrained_model import create_model as create_model
    from bertsmith.serving.server import serve as serve
    from bertsmith.tokenizer.tokenizer import Tokenizer as Tokenizer
    from bertsmith.tokenizer_training.train import train_tokenizer as train_tokenizer

_MODULES = {
    "BertsmithError": "errors",
    "CheckOptions": "corpus.checks.check",
    "Encoder": "models.encoder",
    "Ensemble": "inference.ensemble",
    "InputError": "errors",
    "MachineError": "errors",
    "Model": "inference.model",
    "ModelConfig": "models.config",
    "NgramModel": "predecessors.ngram",
    "Packed": "packed",
    "Reading": "io.documents",
    "Shards": "corpus.shards",
    "StaticModel": "predecessors.static_vectors",
    "Stopped": "errors",
    "Texts": "io.sources",
    "Tokenizer": "tokenizer.tokenizer",
    "WordVectors": "predecessors.word_vectors",
    "card": "export.card",
    "check_corpus": "inspection.check",
    "compare": "inference.significance",
    "create_model": "pretraining.untrained_model",
    "count_parameters": "models.parameter_count",
    "ensemble": "inference.ensemble",
    "export_model": "export.export",
    "extend_tokenizer": "pretraining.extend_vocabulary",
    "find_rate": "finetuning.lr_finder",
    "ablate": "experiments.ablation",
    "adapt": "experiments.adaptation",
    "baselines": "experiments.baselines",
    "distill": "experiments.distillation",
    "distill_static_vectors": "predecessors.static_vectors",
    "distill_task": "experiments.distillation",
    "finetune": "finetuning.run",
    "finetune_glue": "experiments.glue",
    "finetune_repeatedly": "experiments.multirun",
    "info": "inspection.info",
    "inspect_tokenizers": "inspection.inspect",
    "list_runs": "inspection.runs",
    "load": "inference.model",
    "plan_pretraining": "pretraining.plan",
    "prepare": "corpus.prepare",
    "presets": "models.family",
    "pretrain": "pretraining.run",
    "push": "export.push",
    "quickstart": "demo.quickstart",
    "search": "inference.search",
    "serve": "serving.server",
    "show_instance": "inspection.show",
    "train_ngram": "predecessors.ngram",
    "train_tokenizer": "tokenizer_training.train",
    "train_word_vectors": "predecessors.word2vec",
}

_MODEL_METHODS = (  # for suggestions
    "embed",
    "evaluate",
    "explain",
    "fill_mask",
    "index",
    "neighbors",
    "predict",
    "predict_file",
    "probe",
    "save",
    "score",
    "score_pairs",
)

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("bertsmith")
    if name not in _MODULES:
        raise AttributeError(f"module 'bertsmith' has no attribute '{name}'{_suggestion(name)}")
    return getattr(importlib.import_module(f"bertsmith.{_MODULES[name]}"), name)


def _suggestion(name: str) -> str:
    import difflib

    if name in _MODEL_METHODS:
        return f": it is a method of a Model, load(…).{name}"
    matches = difflib.get_close_matches(name, _MODULES, n=1, cutoff=0.7)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def __dir__() -> list[str]:
    return sorted(["__version__", *_MODULES])


if "IPython" in sys.modules:  # Only a notebook needs the handler, and scripts should not wait for its import.
    from bertsmith.log_handlers import install_in_notebook as _install_in_notebook

    _install_in_notebook()
