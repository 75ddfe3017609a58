"""Model folders in the field's layout: written whole or not at all, read and verified.

config.json, model.safetensors and the tokenizer's files are what every tool of the field opens;
bertsmith.json beside them holds the training record and the weights' hash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith import disk
from bertsmith.artifacts.mistyped import refuse_mistyped
from bertsmith.artifacts.names import check_names, field_tensors, from_field, to_field
from bertsmith.errors import InputError, MachineError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder

CONFIG, WEIGHTS, RECORD = "config.json", "model.safetensors", "bertsmith.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_LARGEST_JSON = 16 * 2**20  # bytes; a config with a hundred thousand labels is far below

# Keys of the field's configs that would change the numbers: value that is BERT's own, or refused.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


_ARCHITECTURES = {
    frozenset({"encoder"}): "BertModel",
    frozenset({"encoder", "pooler"}): "BertModel",
    frozenset({"encoder", "masked"}): "BertForMaskedLM",
    frozenset({"encoder", "pooler", "masked", "pair"}): "BertForPreTraining",
    frozenset({"encoder", "pooler", "classifier"}): "BertForSequenceClassification",
}


class SavesItself(Protocol):
    """A tokenizer, as far as a model folder cares."""

    def save(self, folder: Path) -> Any:
        """Write the tokenizer's files into a folder."""


@dataclass
class ModelFolder:
    """A model folder that was opened: its config is checked, its tensors' names too; weights come on demand.

    labels: the classes' names in order of their ids, None without a classifier or names. record: what
    bertsmith.json holds, {} for folders of others.
    """

    path: Path
    config: ModelConfig
    architecture: str
    labels: list[str] | None
    record: dict[str, Any]
    problem_type: str | None = None
    _weights: dict[str, Tensor] | None = field(default=None, repr=False)

    def encoder(self, generator: torch.Generator | None = None) -> Encoder:
        """The encoder with the folder's weights, fp32, in training mode; `generator` is for its dropout."""
        with torch.device("meta"):  # no memory and no time for weights that are about to be replaced
            encoder = Encoder(self.config, generator or torch.Generator("cpu").manual_seed(0))
        self.fill("encoder", encoder)
        return encoder

    def has(self, prefix: str) -> bool:
        """Whether weights for this part ("encoder", "pooler", "masked", "pair", "classifier") are there."""
        return any(name.startswith(f"{prefix}.") for name in self.weights())

    def fill(self, prefix: str, module: nn.Module) -> None:
        """Replace a module's weights by the folder's; missing or wrongly shaped ones are an `InputError`."""
        place, layers = self.path / WEIGHTS, self.config.num_hidden_layers
        wanted, weights = module.state_dict(), self.weights()
        if missing := [full for name in wanted if (full := f"{prefix}.{name}") not in weights]:
            raise InputError(
                f"{place}: missing {field_tensors(missing, layers)}",
                f"the folder was written as {self.architecture}",
            )
        found: dict[str, Tensor] = {}
        for name, old in wanted.items():
            new = weights[f"{prefix}.{name}"]
            if new.shape != old.shape:
                raise InputError(
                    f"{place}: {field_tensors([f'{prefix}.{name}'], layers)} {list(new.shape)} should be "
                    f"{list(old.shape)}",
                    "config.json and the weights do not belong together",
                )
            found[name] = new.to(torch.float32, copy=True)
        module.load_state_dict(found, assign=True)

    def weights(self) -> dict[str, Tensor]:
        """All tensors by our names, read once; a file that is not what was written is an `InputError`."""
        if self._weights is None:
            path = self.path / WEIGHTS
            expected = self.record.get("weights_sha256")
            if expected is not None and disk.digest(path) != expected:
                raise InputError(
                    f"{path}: the weights are not those that were written (their hash differs)",
                    "the file is damaged or was replaced: copy or train it again",
                )
            with _opened(path) as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for name, tensor in tensors.items():
                if not (tensor.is_floating_point() or name.endswith("position_ids")):
                    raise InputError(
                        f"{path}: tensor '{name}' holds {tensor.dtype}, not floating point numbers"
                    )
            self._weights = from_field(tensors, self.config.num_hidden_layers, str(path))
        return self._weights


def read_folder(path: str | Path) -> ModelFolder:
    """Open a model folder: ours, or the field's own for a BERT.

    Sizes are typed and bounded before anything is allocated; unknown keys of config.json are ignored; another
    family, a pickle, a torn file and unexpected tensors are refused by an `InputError` that names them.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: there is no such folder", "name a run, a model folder or a published name")
    raw = _read_json(path / CONFIG)
    place = str(path / CONFIG)
    if (family := raw.get("model_type", "bert")) != "bert":
        raise InputError(f"{place}: this is a model of type {str(family)[:60]!r}", "only 'bert' can be read")
    for key, value in _FIXED.items():
        if raw.get(key, value) not in (value, None):
            raise InputError(
                f"{place}: {key} {str(raw[key])[:60]!r} cannot be read", f"BERT has {value!r} there"
            )
    sizes = {k: raw[k] for k in ModelConfig.model_fields if raw.get(k) is not None}
    if wrong := [k for k, v in sizes.items() if isinstance(v, bool | list | dict)]:
        raise InputError(f"{place}: '{wrong[0]}' is not a number or a name")
    config = ModelConfig.of(sizes, place)
    weights = _weights_file(path)
    with _opened(weights) as file:
        names = list(file.keys())
        check_names(names, config.num_hidden_layers, str(weights))
        classes = file.get_slice("classifier.weight").get_shape()[0] if "classifier.weight" in names else None
    architectures = raw.get("architectures") or ["BertModel"]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise InputError(f"{place}: 'architectures' is not a list of names")
    record = _read_json(path / RECORD) if (path / RECORD).exists() else {}
    problem = raw.get("problem_type")
    return ModelFolder(path, config, architectures[0], _labels(raw, classes, place), record, problem)


def write_folder(
    folder: str | Path,
    config: ModelConfig,
    modules: Mapping[str, nn.Module],
    *,
    architecture: str | None = None,
    tokenizer: SavesItself | None = None,
    labels: Sequence[str] | None = None,
    problem_type: str | None = None,
    record: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model folder, whole or not at all.

    modules: "encoder" and any of "pooler", "masked", "pair", "classifier". architecture: the field's class
    ("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification"). record: what
    bertsmith.json keeps besides version and hash (task, tokens seen …). An earlier folder of ours is replaced
    at one stroke; a folder of others, with something in it, is refused. Returns the folder.
    """
    folder = Path(folder)
    refuse_foreign(folder)
    architecture = architecture or _ARCHITECTURES[frozenset(modules)]
    values: dict[str, Any] = {"architectures": [architecture], "model_type": "bert", **config.model_dump()}
    if labels is not None:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if problem_type is not None:
        values["problem_type"] = problem_type
    state = {
        f"{prefix}.{name}": tensor.detach().cpu()
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    try:
        with disk.replace_folder(folder) as part:
            save_file(to_field(state, bare=architecture == "BertModel"), part / WEIGHTS, {"format": "pt"})
            _write_json(part / CONFIG, values)
            if tokenizer is not None:
                tokenizer.save(part)
            kept = {
                **(record or {}),
                "version": version("bertsmith"),
                "weights_sha256": disk.digest(part / WEIGHTS),
            }
            _write_json(part / RECORD, kept)
    except (OSError, SafetensorError) as error:
        raise MachineError(f"{folder}: the model could not be written: {error}") from error
    return folder


def refuse_foreign(folder: Path) -> None:
    """Refuse to replace what bertsmith did not write; call it before hours of work, too."""
    if folder.exists() and not (
        folder.is_dir() and ((folder / RECORD).is_file() or not any(folder.iterdir()))
    ):
        raise InputError(f"{folder}: stands there and is no model folder of bertsmith", "name another folder")


def locate(name: str | Path) -> Path:
    """The model folder behind a name: a run folder (its model/), a model folder, or a published name.

    A published name ("bert-base-uncased", "owner/model") is looked up in the cache of huggingface_hub (extra
    `hub`) and fetched from there unless HF_HUB_OFFLINE is set. What cannot be found is an `InputError`.
    """
    path = Path(name)
    for candidate in (path / "model", path):
        if (candidate / CONFIG).is_file():
            return candidate
    if path.exists():
        raise InputError(f"{name}: is neither a run nor a model folder ({CONFIG} is not in it)")
    refuse_mistyped(str(name))
    return _from_hub(str(name))


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"{name}: there is no such folder", "if it is a published name: pip install 'bertsmith[hub]'"
        ) from None
    wanted = [CONFIG, "*.safetensors", "*.json", "vocab.txt"]
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    reason = ""
    for cached_only in (True,) if offline else (True, False):
        try:
            found = Path(snapshot_download(name, allow_patterns=wanted, local_files_only=cached_only))
        except Exception as error:  # the hub's errors are many and its network's more: each means "not found"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            continue
        if (found / CONFIG).is_file() and (found / WEIGHTS).is_file():
            return found
        reason = f"its snapshot has no {CONFIG} or no {WEIGHTS}"
    where = "in the local cache (HF_HUB_OFFLINE is set)" if offline else f"on the hub: {reason}"
    raise InputError(f"{name}: is no folder here, and was not found {where}", "check the name")


def _weights_file(folder: Path) -> Path:
    path = folder / WEIGHTS
    if path.is_file():
        return path
    if (folder / f"{WEIGHTS}.index.json").is_file():
        raise InputError(f"{folder}: the weights are split over several files", f"save them as one {WEIGHTS}")
    for pattern in _PICKLES:
        for pickle in sorted(folder.glob(pattern)):
            raise InputError(
                f"{pickle}: this is a pickle, which can run code of its writer; it is not opened",
                "where you trust it, load it with transformers and save_pretrained() it as safetensors",
            )
    raise InputError(f"{folder}: there is no {WEIGHTS} in it")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: this is not a whole safetensors file ({error})", "it is torn or damaged: copy it again"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(f"{path}: is larger than any of its kind")
        values = json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file", "a model folder has one") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: this is not JSON ({error})", "it is torn or damaged") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: holds no JSON object")
    return values


def _labels(raw: Mapping[str, Any], classes: int | None, place: str) -> list[str] | None:
    """Names of the classes: the config's, or LABEL_0 … as the field calls them where it names none."""
    names = raw.get("id2label")
    if names is None or classes is None:
        return None if classes is None else [f"LABEL_{i}" for i in range(classes)]
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(classes)}:
        raise InputError(f"{place}: id2label does not name the ids 0 to {classes - 1} of the classifier")
    return [str(names[str(i)]) for i in range(classes)]


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
