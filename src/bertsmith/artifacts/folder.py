"""Model folders in the Hugging Face layout: written whole or not at all, read and verified.

config.json, model.safetensors and the tokenizer's files are what every tool of the field opens;
bertsmith.json beside them holds the training record and the weights' hash.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.artifacts.config_schema import (
    FieldConfig,
    Record,
    config_of,
    family_of,
    field_values,
    plain,
    read_json,
    typed,
)
from bertsmith.artifacts.locate import CONFIG
from bertsmith.artifacts.safetensors_io import WEIGHTS, Stored, open_weights
from bertsmith.artifacts.weight_names import (
    check_names,
    field_tensors,
    from_field,
    join,
    table_of_file,
    to_field,
)
from bertsmith.device import stored_tensors
from bertsmith.errors import InputError, MachineError
from bertsmith.formatting import counted
from bertsmith.io import atomic
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import family
from bertsmith.models.heads import PARTS, ProblemType
from bertsmith.models.tensor_names import NameTable
from bertsmith.suggestions import absent
from bertsmith.tokenizer.tokenizer import Tokenizer

RECORD = "bertsmith.json"
MODEL_FILES = (CONFIG, WEIGHTS, RECORD)
"""What `write_folder` writes beside the tokenizer's files."""
_WITH_LABELS = ("classifier", "tagger", "relater")
_ON_SEQUENCES = {"classifier", "chooser"}  # heads that read one token of each sequence


class SavesItself(Protocol):
    """A tokenizer, as far as a model folder cares."""

    def save(self, folder: Path) -> Any:
        """Write the tokenizer's files into a folder."""


@dataclass
class ModelFolder:
    """A model folder that was opened: sizes, names and shapes are checked; weights come on demand.

    architecture: the field's class that config.json names, or the one that has these parts. parts: "encoder" and
    those of `heads.PARTS` whose weights are there. labels: the classes' names in order of their ids, None without
    a classifier of sentences, tokens or relations. problem_type: what the field's config says of them. record:
    what bertsmith.json holds, {} for folders of others.
    """

    path: Path
    config: ModelConfig
    architecture: str
    parts: frozenset[str]
    labels: list[str] | None
    problem_type: ProblemType | None
    record: dict[str, Any]
    _stored: Stored = field(repr=False)
    _table: NameTable = field(repr=False)
    _weights: dict[str, Tensor] | None = field(default=None, repr=False)

    def encoder(
        self,
        generator: torch.Generator | None = None,
        config: ModelConfig | None = None,
        *,
        copied: bool = True,
    ) -> Encoder:
        """The encoder with the folder's weights, fp32, in training mode, on the device of `generator`, which is
        for its dropout. config: the folder's with other dropout. copied: see `fill`."""
        own = torch.Generator().manual_seed(0) if generator is None else generator
        encoder = _on_meta(config or self.config, own)  # no memory, no time: its weights are replaced at once
        self.fill("encoder", encoder, own.device, copied=copied)
        return encoder

    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. InputError where it has tokens that the model has no row for."""
        found = Tokenizer.load(self.path)
        if found.vocab_size > self.config.vocab_size:
            raise InputError(
                f"{self.path}: the tokenizer has {counted(found.vocab_size, 'entry', 'entries')}, the model "
                f"{self.config.vocab_size:,}",
                "they do not belong together: copy the folder again from its source",
            )
        return found

    @property
    def sentence_task(self) -> str:
        """What its head for sentence pairs answers: as its record says, or else its family."""
        found: str | None = self.record.get("sentence_task")
        return found or family(self.config.model_type).pretraining.get("sentence_task", "nsp")

    @property
    def is_next_label(self) -> int:
        """The label of a pair whose second segment follows the first; 0 but where its record says otherwise."""
        found: int = self.record.get("is_next_label", 0)
        return found

    def has(self, part: str) -> bool:
        """Whether weights for this part are there."""
        return part in self.parts

    def fill(
        self, part: str, module: nn.Module, device: torch.device | None = None, *, copied: bool = True
    ) -> None:
        """Replace a module's weights by the folder's, fp32, on `device` or where each of them is.

        Missing or wrongly shaped ones are an `InputError`. copied: whether all of them have memory of their own;
        if not, what needs no change stays in the file's pages, which modules then share, and the file must stay
        as it is.
        """
        wanted, weights = module.state_dict(), self.weights()
        _check_shapes(
            {f"{part}.{name}": tuple(tensor.shape) for name, tensor in wanted.items()},
            {name: tuple(tensor.shape) for name, tensor in weights.items()},
            self._table,
            f"{self._stored.place}",
            self.architecture,
        )
        found = {}
        for name, old in wanted.items():
            new = weights[f"{part}.{name}"]
            where = device or (new.device if old.is_meta else old.device)
            found[name] = new.to(where, torch.float32, copy=copied)
        module.load_state_dict(found, assign=True)

    def weights(self) -> dict[str, Tensor]:
        """All tensors by our names, read once; a file that is not what was written, or holds numbers that
        are not finite, is an `InputError`."""
        if self._weights is None:
            expected = self.record.get("weights_sha256")
            if expected is not None and self.weights_digest() != expected:
                raise InputError(
                    f"{self._stored.place}: the weights are not those that were written (their hash differs)",
                    "the file is damaged or was replaced: copy or train it again",
                )
            constants = frozenset(name for name in self._stored.shapes if name.endswith("position_ids"))
            tensors = self._stored.read(skip=constants)
            self._weights = from_field(tensors, self._table, str(self._stored.place))
        return self._weights

    def weights_digest(self) -> str:
        """A hash of the files that hold the weights."""
        return self._stored.digest()


def read_folder(path: str | Path) -> ModelFolder:
    """Open a model folder: ours, or the field's own for a model of a known family.

    Sizes are typed and bounded and all shapes compared before anything is allocated; unknown keys of config.json
    are ignored; another family, a pickle, a torn file and unexpected tensors are refused by an `InputError` that
    names them.
    """
    path = Path(path)
    if not path.is_dir():
        raise absent(path, "folder", "name a run, a model folder or a published name")
    raw, place = read_json(path / CONFIG), str(path / CONFIG)
    said = typed(FieldConfig, raw, place)
    stored = open_weights(path)
    names = list(stored.shapes)
    kind = family_of(said, names, place)
    config = config_of(raw, kind, place)
    table = table_of_file(kind.names(config), kind, said.architecture, names)
    check_names(names, table, str(stored.place))
    shapes = _our_shapes(stored, table)
    parts = frozenset(name.partition(".")[0] for name in shapes) | {"encoder"}
    architecture = said.architecture or kind.classes.get(parts) or f"{kind.class_prefix}Model"
    reads_first = _ON_SEQUENCES & parts and parts.isdisjoint({"recurrent", "beside"})
    if config.sees == "before" and reads_first and architecture not in kind.causal.values():
        raise InputError(
            f"{place}: is_decoder is true, and the head of {architecture} reads the first token, which sees no "
            "other",
            "only such a model whose head reads the last token can be read",
        )
    outputs = next(
        (shapes[f"{p}.linear.weight"][0] for p in _WITH_LABELS if f"{p}.linear.weight" in shapes), None
    )
    for part in ("encoder", *sorted(parts - {"encoder"})):
        module = _on_meta(config) if part == "encoder" else _part_on_meta(part, config, outputs or 1)
        wanted = {f"{part}.{name}": tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        _check_shapes(wanted, shapes, table, str(stored.place), architecture)
    record = read_json(path / RECORD) if (path / RECORD).exists() else {}
    typed(Record, record, str(path / RECORD))
    labels = _labels(said.id2label, outputs, place)
    return ModelFolder(path, config, architecture, parts, labels, said.problem_type, record, stored, table)


def write_folder(
    folder: str | Path,
    config: ModelConfig,
    parts: Mapping[str, nn.Module | Mapping[str, Tensor]],
    *,
    architecture: str | None = None,
    tokenizer: SavesItself | None = None,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType | None = None,
    record: Mapping[str, Any] | None = None,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model folder, whole or not at all.

    parts: "encoder" and any of `heads.PARTS`, as modules or as their tensors by name. architecture: the
    field's class; if not given, the family's class with these parts, and no such class is an `InputError`.
    problem_type: as the field's config has it. record: what bertsmith.json keeps besides version and hash (task,
    tokens seen …). files: further JSON files by their paths in the folder. An earlier folder of ours is replaced
    at one stroke; a folder of others, with something in it, is refused. Returns the folder.
    """
    folder, kind = Path(folder), family(config.model_type)
    refuse_foreign(folder)
    kind.check(config)
    architecture = architecture or kind.architecture(parts, causal=config.sees == "before")
    values: dict[str, Any] = {"architectures": [architecture], **field_values(config)}
    if labels is not None:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if problem_type is not None:
        values["problem_type"] = problem_type
    state = {
        f"{part}.{name}": tensor.detach().cpu()
        for part, stored in parts.items()
        for name, tensor in (stored_tensors(stored) if isinstance(stored, nn.Module) else stored).items()
    }
    bare = architecture == f"{kind.class_prefix}Model"
    try:
        with atomic.replace_folder(folder) as part:
            save_file(to_field(state, kind.names(config), bare=bare), part / WEIGHTS, {"format": "pt"})
            _write_json(part / CONFIG, values)
            for name, content in (files or {}).items():
                (part / name).parent.mkdir(exist_ok=True)
                _write_json(part / name, content)
            if tokenizer is not None:
                tokenizer.save(part)
            kept = {
                **plain(record or {}),
                "version": version("bertsmith"),
                "weights_sha256": atomic.digest(part / WEIGHTS),
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
        raise InputError(
            f"{folder}: already exists and is not a model folder of bertsmith", "name another folder"
        )


def _on_meta(config: ModelConfig, generator: torch.Generator | None = None) -> Encoder:
    """An encoder without memory, for its shapes and to be filled."""
    own = generator or torch.Generator()
    kind = family(config.model_type)
    kind.check(config)
    with torch.device("meta"):
        return kind.encoder(config, own)


def _part_on_meta(part: str, config: ModelConfig, outputs: int) -> nn.Module:
    own = torch.Generator()
    with torch.device("meta"):
        return PARTS[part](config, own, outputs)


def _our_shapes(stored: Stored, table: NameTable) -> dict[str, tuple[int, ...]]:
    """The shapes that our tensors will have."""
    empty = {name: torch.empty(shape, device="meta") for name, shape in stored.shapes.items()}
    return {name: tuple(tensor.shape) for name, tensor in join(empty, table, str(stored.place)).items()}


def _check_shapes(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    table: NameTable,
    place: str,
    architecture: str,
) -> None:
    if missing := [name for name in wanted if name not in found]:
        raise InputError(
            f"{place}: missing {field_tensors(missing, table)}", f"the folder was written as {architecture}"
        )
    for name, shape in wanted.items():
        if found[name] != shape:
            raise InputError(
                f"{place}: {field_tensors([name], table)} {list(found[name])} should be {list(shape)}",
                "config.json and the weights do not belong together",
            )


def _labels(names: Mapping[str, Any] | None, classes: int | None, place: str) -> list[str] | None:
    """Names of the classes: the config's, or LABEL_0 … as the field calls them where it names none."""
    if classes is None:
        return None
    if names is None:
        return [f"LABEL_{i}" for i in range(classes)]
    if set(names) != {str(i) for i in range(classes)}:
        raise InputError(
            f"{place}: id2label names other ids than the classifier's, 0 to {classes - 1}",
            "give each of these a name there, and no other",
        )
    found = [str(names[str(i)]) for i in range(classes)]
    label, times = Counter(found).most_common(1)[0]
    if times > 1:  # answers are by name: one of the two would vanish
        raise InputError(
            f"{place}: id2label gives the name {label!r} to {times} ids", "give each class a name of its own"
        )
    return found


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
