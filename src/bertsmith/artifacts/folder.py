"""Read and write model folders in the Hugging Face layout.

config.json, model.safetensors, and the tokenizer's files are Hugging Face's; bertsmith.json holds the training
record and the digest of the weights.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.artifacts.config_schema import (
    HFConfig,
    Record,
    config_from_hf,
    config_to_hf,
    family_from_hf,
    json_safe,
    read_json,
    validate,
)
from bertsmith.artifacts.locate import CONFIG_FILE
from bertsmith.artifacts.sentence_transformers import POOLING_CONFIG, POOLING_FOLDER, SENTENCE_FILES
from bertsmith.artifacts.weights import (
    WEIGHTS_FILE,
    WeightFiles,
    check_names,
    describe_tensors,
    from_hf_names,
    merge_tensors,
    open_weights,
    select_checkpoint_parts,
    to_hf_names,
)
from bertsmith.device import stored_tensors
from bertsmith.errors import InputError, MachineError, command
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout
from bertsmith.models.config import ModelConfig, ProblemType
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, get_family
from bertsmith.models.feature_extraction import FEATURE_PARTS
from bertsmith.models.task_heads import PART_BUILDERS
from bertsmith.models.tensor_names import NameTable
from bertsmith.suggestions import not_found_error
from bertsmith.tokenizer.folder import TOKENIZER_FILES
from bertsmith.tokenizer.tokenizer import Tokenizer

RECORD_FILE = "bertsmith.json"
MODEL_FILES = (CONFIG_FILE, WEIGHTS_FILE, RECORD_FILE, *SENTENCE_FILES)
"""The files that `write_folder` writes, except for the tokenizer's."""
MODEL_LAYOUT = FolderLayout("a model", CONFIG_FILE, (*MODEL_FILES, *TOKENIZER_FILES), "folder")
_LAYOUT = FolderLayout(
    "a model",
    CONFIG_FILE,
    ("*.safetensors", "*.json", "vocab.txt", "merges.txt", "spiece.model", POOLING_CONFIG),
    "folder",
)
_LABELED_PARTS = ("classifier", "tagger", "relater")  # heads with an output per label
_SEQUENCE_PARTS = {"classifier", "chooser"}  # heads that read one token of each sequence


@dataclass
class ModelFolder:
    """An opened model folder: sizes, names, and shapes are checked; weights are read when they are needed.

    Attributes:
        path: The folder.
        config: The model's sizes and switches.
        architecture: The Hugging Face class that config.json names, or the family's class with these parts.
        parts: "encoder" and the parts of `task_heads.PART_BUILDERS` that have weights.
        labels: The names of the classes in the order of their ids, None without a classifier of sequences, tokens,
            or relations.
        problem_type: config.json's problem type.
        record: The contents of bertsmith.json, {} for folders of other tools.
    """

    path: Path
    config: ModelConfig
    architecture: str
    parts: frozenset[str]
    labels: list[str] | None
    problem_type: ProblemType | None
    record: dict[str, Any]
    _files: WeightFiles = field(repr=False)
    _table: NameTable = field(repr=False)
    _weights: dict[str, Tensor] | None = field(default=None, repr=False)

    def encoder(
        self,
        generator: torch.Generator | None = None,
        config: ModelConfig | None = None,
        *,
        copy: bool = True,
    ) -> Encoder:
        """Load the encoder in fp32 and in training mode.

        Args:
            generator: The generator of its dropout; the encoder is on its device. None: on the CPU, seed 0.
            config: The folder's config with other dropout probabilities.
            copy: See `load_into`.
        """
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        # The meta device needs neither memory nor time for initial weights, which are replaced at once.
        with torch.device("meta"):
            encoder = build_encoder(config or self.config, generator)
        self.load_into("encoder", encoder, generator.device, copy=copy)
        return encoder

    def tokenizer(self) -> Tokenizer:
        """Load the folder's tokenizer; InputError if its vocabulary is larger than the model's embeddings."""
        tokenizer = Tokenizer.load(self.path)
        if tokenizer.vocab_size > self.config.vocab_size:
            message = (
                f"the tokenizer has {pluralize(tokenizer.vocab_size, 'entry', 'entries')}, the model "
                f"{self.config.vocab_size:,}"
            )
            extend = command("tokenizer extend", model=self.path, word_list="FILE", output_dir="DIR")
            hint = f"copy the vocabulary again from its source; to add words to the model: {extend}"
            raise InputError("tokenizer_too_large", message, location=self.path, hint=hint)
        return tokenizer

    @property
    def sentence_task(self) -> str:
        """Return the task of the sentence-pair head, by its record or else by its family."""
        task: str | None = self.record.get("sentence_task")
        return task or get_family(self.config.model_type).pretraining.get("sentence_task", "nsp")

    @property
    def is_next_label(self) -> int:
        """Return the label of a pair whose second segment follows the first: the record's, or else 0."""
        label: int = self.record.get("is_next_label", 0)
        return label

    def has(self, part: str) -> bool:
        """Return True if the folder has weights of this part."""
        return part in self.parts

    def load_into(
        self, part: str, module: nn.Module, device: torch.device | None = None, *, copy: bool = True
    ) -> None:
        """Load a part's weights into a module, in fp32.

        Args:
            part: "encoder" or a name of `task_heads.PART_BUILDERS`.
            module: The module whose weights are replaced.
            device: The device of the weights; None: the module's present one.
            copy: Copy all weights. If False, weights that need no conversion stay memory-mapped: modules share
                them, and the file must not change.

        Raises:
            InputError: A tensor is missing or has another shape.
        """
        state, weights = module.state_dict(), self.weights()
        self._check_shapes(part, module, weights)
        new_state = {}
        for name, present in state.items():
            weight = weights[f"{part}.{name}"]
            target = device or (weight.device if present.is_meta else present.device)
            new_state[name] = weight.to(target, torch.float32, copy=copy)
        module.load_state_dict(new_state, assign=True)

    def weights(self) -> dict[str, Tensor]:
        """Return all tensors by bertsmith's names; the file is read once.

        Raises:
            InputError: The file's SHA-256 is not the recorded one, or a value is not finite.
        """
        if self._weights is None:
            expected = self.record.get("weights_sha256")
            if expected is not None and self.weights_digest() != expected:
                message = "these are not the weights that were written (their SHA-256 differs)"
                hint = "the file is damaged or was replaced: copy or train it again"
                raise InputError("weights_changed", message, location=self._files.location, hint=hint)
            self._weights = from_hf_names(self._files.read(), self._table, str(self._files.location))
        return self._weights

    def weights_digest(self) -> str:
        """Return the SHA-256 of the weight files."""
        return self._files.digest()

    def _check_shapes(self, part: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Raise an InputError if tensors by bertsmith's names lack one of a part, or it has another shape."""
        location, state = self._files.location, module.state_dict(prefix=f"{part}.")
        if missing := [name for name in state if name not in tensors]:
            message = f"missing {describe_tensors(missing, self._table)}"
            hint = f"the folder was written as {self.architecture}"
            raise InputError("tensor_missing", message, location=location, hint=hint)
        for name, tensor in state.items():
            shape, expected = tensors[name].shape, tensor.shape
            if shape != expected:
                tensor_name = describe_tensors([name], self._table)
                message = f"{tensor_name} {list(shape)} should be {list(expected)}"
                hint = "config.json and the weights are from different models"
                raise InputError("shape_mismatch", message, location=location, hint=hint)


def read_folder(path: str | Path) -> ModelFolder:
    """Open a model folder of bertsmith, or one of another tool with a model of a supported family.

    Sizes are validated and all shapes compared on the meta device, before memory is allocated. Unknown keys of
    config.json are ignored.

    Raises:
        InputError: The family is not supported, the weights are a pickle or damaged, or a tensor is unexpected.
    """
    path = Path(path)
    if not path.is_dir():
        raise not_found_error(path, "folder", "Name a run, a model folder, or a published model.")
    raw, location = read_json(path / CONFIG_FILE), str(path / CONFIG_FILE)
    hf_config = validate(HFConfig, raw, location)
    files = open_weights(path)
    weights_location = str(files.location)
    names = list(files.shapes)
    model_family = family_from_hf(hf_config, names, location)
    config = config_from_hf(raw, model_family, location)
    table = select_checkpoint_parts(model_family.names(config), hf_config.architecture, names)
    check_names(names, table, weights_location)
    meta_tensors = {name: torch.empty(shape, device="meta") for name, shape in files.shapes.items()}
    tensors = merge_tensors(meta_tensors, table, weights_location)
    parts = frozenset(name.partition(".")[0] for name in tensors) | {"encoder"}
    if not any(name.startswith("masked.") for name in table.tensors):
        parts |= {"masked"}  # a tied decoder without a bias has no weights of its own
    architecture = (
        hf_config.architecture or model_family.classes.get(parts) or f"{model_family.class_prefix}Model"
    )
    reads_one_token = _SEQUENCE_PARTS & parts and parts.isdisjoint(FEATURE_PARTS)
    if (
        config.attention_direction == "before"
        and reads_one_token
        and architecture not in model_family.causal.values()
    ):
        message = (
            f"is_decoder is true, but the head of {architecture} reads the first token, which sees no other"
        )
        hint = "only causal models whose head reads the last token are supported"
        raise InputError("causal_head_reads_first_token", message, location=location, hint=hint)
    linear_weights = (f"{part}.linear.weight" for part in _LABELED_PARTS)
    num_labels = next((len(tensors[name]) for name in linear_weights if name in tensors), None)
    folder = ModelFolder(path, config, architecture, parts, None, hf_config.problem_type, {}, files, table)
    generator = torch.Generator()
    with torch.device("meta"):
        folder._check_shapes("encoder", build_encoder(config, generator), tensors)
        for part in sorted(parts - {"encoder"}):
            module = PART_BUILDERS[part](config, generator, num_labels or 1)
            folder._check_shapes(part, module, tensors)
    if (path / RECORD_FILE).exists():
        folder.record = read_json(path / RECORD_FILE)
        validate(Record, folder.record, str(path / RECORD_FILE))
    folder.labels = _labels(hf_config.id2label, num_labels, location)
    return folder


def write_folder(
    folder: str | Path,
    config: ModelConfig,
    parts: Mapping[str, nn.Module | Mapping[str, Tensor]],
    *,
    architecture: str | None = None,
    tokenizer: Tokenizer | None = None,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType | None = None,
    record: Mapping[str, Any] | None = None,
    json_files: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model folder atomically; an earlier one of bertsmith is replaced, except for the user's files in it.

    Args:
        folder: The folder to write.
        config: The model's sizes and switches.
        parts: "encoder" and any of `task_heads.PART_BUILDERS`, as modules or as their tensors by name.
        architecture: The Hugging Face class; None: the family's class with these parts.
        tokenizer: The tokenizer to save with the model.
        labels: The names of the classes in the order of their ids.
        problem_type: config.json's problem type.
        record: The contents of bertsmith.json except for version and digest (task, tokens seen, …).
        json_files: The contents of further JSON files by their paths in the folder.

    Returns:
        The folder.

    Raises:
        InputError: The family has no class with these parts, or the folder is not empty and not bertsmith's.
        MachineError: The folder cannot be written.
    """
    folder, model_family = Path(folder), get_family(config.model_type)
    check_replaceable(folder)
    model_family.check_config(config)
    architecture = architecture or model_family.architecture(
        parts, causal=config.attention_direction == "before"
    )
    values: dict[str, Any] = {"architectures": [architecture], **config_to_hf(config)}
    if labels is not None:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if problem_type is not None:
        values["problem_type"] = problem_type
    state = {
        f"{part}.{name}": tensor.detach().cpu()
        for part, module in parts.items()
        for name, tensor in (stored_tensors(module) if isinstance(module, nn.Module) else module).items()
    }
    is_base_model = architecture == f"{model_family.class_prefix}Model"
    try:
        with atomic.atomic_folder(folder, replace=True) as new_folder:
            tensors = to_hf_names(state, model_family.names(config), is_base_model=is_base_model)
            save_file(tensors, new_folder / WEIGHTS_FILE, {"format": "pt"})
            _write_json(new_folder / CONFIG_FILE, values)
            for name, content in (json_files or {}).items():
                (new_folder / name).parent.mkdir(exist_ok=True)
                _write_json(new_folder / name, content)
            if tokenizer is not None:
                tokenizer.save(new_folder)
            complete_record = {
                **json_safe(record or {}),
                "version": version("bertsmith"),
                "weights_sha256": atomic.sha256_of_file(new_folder / WEIGHTS_FILE),
            }
            _write_json(new_folder / RECORD_FILE, complete_record)
            MODEL_LAYOUT.copy_other_files(folder, new_folder)
    except (OSError, SafetensorError) as error:
        raise MachineError(
            "model_not_written", f"cannot write the model: {error}", location=folder
        ) from error
    return folder


def copy_model(folder: Path, out: Path, files: Mapping[str, str] = {}, *, overwrite: bool) -> Path:
    """Copy a model folder (config.json, safetensors, the tokenizer's files) to the new folder `out` atomically.

    Args:
        folder: The model folder.
        out: The new folder.
        files: The contents of further .json files by name.
        overwrite: Replace an existing model folder. Any other existing folder is an InputError.
    """
    replace = _LAYOUT.check_replaceable(out, overwrite=overwrite)
    try:
        with atomic.atomic_folder(out, replace=replace) as new_folder:
            for file in folder.iterdir():
                if file.is_file() and any(fnmatch(file.name, name) for name in _LAYOUT.patterns):
                    shutil.copyfile(file, new_folder / file.name)
            if (pooling := folder / POOLING_CONFIG).is_file():
                (new_folder / POOLING_FOLDER).mkdir()
                shutil.copyfile(pooling, new_folder / POOLING_CONFIG)
            for name, content in files.items():
                atomic.write_text(new_folder / name, content)
    except OSError as error:
        raise MachineError("model_not_written", f"cannot write the model: {error}", location=out) from error
    return out


def check_replaceable(folder: Path) -> None:
    """Raise an InputError for a folder that is neither empty nor a model folder of bertsmith.

    Long jobs call this first, so that they do not fail at the end.
    """
    is_replaceable = folder.is_dir() and ((folder / RECORD_FILE).is_file() or not any(folder.iterdir()))
    if folder.is_symlink() or (folder.exists() and not is_replaceable):
        message = "it exists and is not a model folder of bertsmith"
        hint = "name another folder"
        raise InputError("not_a_model_folder", message, location=folder, hint=hint)


def _labels(id2label: Mapping[str, Any] | None, num_labels: int | None, location: str) -> list[str] | None:
    """Return the names of the classes: the config's, or LABEL_0, LABEL_1, … as in transformers."""
    if num_labels is None:
        return None
    if id2label is None:
        return [f"LABEL_{i}" for i in range(num_labels)]
    if set(id2label) != {str(i) for i in range(num_labels)}:
        message = f"the ids of id2label are not the classifier's, 0 to {num_labels - 1}"
        hint = "name each of these ids, and no other"
        raise InputError("label_ids_mismatch", message, location=location, hint=hint)
    labels = [str(id2label[str(i)]) for i in range(num_labels)]
    label, count = Counter(labels).most_common(1)[0]
    if count > 1:  # predictions are by name, so one label would replace the other
        message = f"id2label gives the name {label!r} to {count} ids"
        hint = "give each class its own name"
        raise InputError("duplicate_label", message, location=location, hint=hint)
    return labels


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
