"""The sides of speed.py, each in a process of its own that it asks: begin, window, memory.

A side is one of ours or of the reference library's in a precision, or the limit: the matrix products of the model
alone. All see the same instances and begin with the same weights, the reference's through a folder on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

import bertsmith as bs
from bertsmith import hardware
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.shards import Shards
from bertsmith.hardware import Precision
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.instances.synthetic_batches import SyntheticStream
from bertsmith.kernels.backend_selection import select_inference_backend, select_training_backend
from bertsmith.kernels.reference import MatmulBackend
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.fused_cross_entropy import vocabulary_chunks
from bertsmith.models.layers import ONEDNN
from bertsmith.objectives.masked_lm import MaskedLM
from bertsmith.objectives.objective import MODEL, Objective
from bertsmith.pretraining.data import instances_of
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tasks.items import ItemStream
from bertsmith.tasks.task import task_type
from bertsmith.training.data_loader import Position, batches
from bertsmith.training.settings import TrainSettings
from corpus import prepare_corpus
from finetune import TASKS, checkpoint, pad_items, task_file
from ours import OurTrainer
from record import WORK
from reference import make_adamw, pad_batch

RATE, MASK_SHARE, NATURAL = 1e-4, 0.15, 128
WORKERS = 4  # threads that build batches for a GPU
TRIALS = 4  # of a way to make a product
WIDE = 128  # columns: so wide a model has kernels of ours
GROUP = 50  # batches that are sorted by length together, as the reference's Trainer does
KINDS = {"classify": "SequenceClassification"}

Inputs = dict[str, Tensor]


def serve(options: argparse.Namespace) -> None:
    """Answer each word on stdin with a line of JSON."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what others print
    hardware.configure_process(options.threads)
    work: Work = Pretraining(options) if options.what == "train" else Finetuning(options)
    name, precision = options.side.split(", ")[:2]
    if precision == "compiled":
        precision = hardware.choose_precision(torch.device(options.device)).precision
    side: Any = {"ours": Ours, "reference": Reference, "limit": Limit}[name](work, precision, options)
    for word in sys.stdin:
        if word.strip() == "begin":
            answer = {"precision": precision, **side.first()}
        elif word.strip() == "window":
            answer = {"rate": side.window()}
        else:
            answer = {"mib": peak_mib(torch.device(options.device))}
        print(json.dumps(answer), file=answers, flush=True)


def peak_mib(device: torch.device) -> float:
    """The most memory that this process has held, of a GPU where it computes on one."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated(device) / 2**20


def settle(device: torch.device) -> None:
    """Wait until a device has done what it was asked to do."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)


class Work(ABC):
    """What is learnt: the first weights, and the batches in both forms."""

    config: ModelConfig
    encoder: Any
    objective: Objective
    stream: Any

    def __init__(self, options: argparse.Namespace) -> None:
        self.size = options.batch

    def batches(self) -> Iterator[Any]:
        """Ours, in their order."""
        for at in range(0, self.stream.size(0) - self.size, self.size):
            yield self.stream.batch(0, at, at + self.size)

    @abstractmethod
    def inputs(self, number: int) -> Inputs:
        """Batch `number` as the reference takes it, padded to its longest, what is to be learnt among it."""

    @abstractmethod
    def model(self) -> nn.Module:
        """The reference's, with the same weights."""

    @cached_property
    def folder(self) -> Any:
        """Where the first weights lie for the reference."""
        parts = self.objective.export(self.encoder)[MODEL]
        place = WORK / f"speed-{os.getpid()}"
        return write_folder(
            place, parts.config, parts.modules, labels=parts.labels, problem_type=parts.problem_type
        )


class Pretraining(Work):
    """Masked LM and next sentence."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        if options.lengths == "natural":
            shards = Shards.open(prepare_corpus())
            chosen = PretrainSettings.of(
                {
                    "model": preset(options.preset, vocab_size=shards.tokenizer.vocab_size).model_dump(),
                    "data": {"instances": "sentence_pair", "sequence_length": NATURAL},
                },
                "speed",
            )
            split = DocumentSplit.from_settings(shards, chosen.data)
            self.stream = instances_of(shards, split.train, chosen, NATURAL, kin=split.duplicate_groups)
            self.config = chosen.model
        else:
            self.config = preset(options.preset)
            length = int(options.lengths.removeprefix("fixed:"))
            self.stream = SyntheticStream(self.config.vocab_size, length, MASK_SHARE)
        self.encoder = build_encoder(self.config, torch.Generator().manual_seed(0))
        self.objective = MaskedLM(self.config, self.encoder.generator)

    def inputs(self, number: int) -> Inputs:
        at = number * self.size
        return pad_batch(self.stream.batch(0, at, at + self.size))

    def model(self) -> nn.Module:
        from transformers import BertForPreTraining

        found: nn.Module = BertForPreTraining.from_pretrained(self.folder)
        return found


class Finetuning(Work):
    """A task on its own rows, from a real checkpoint."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.bench = TASKS[options.task]
        kind = task_type(self.bench.verb)
        settings = kind.settings_type.of({}, options.task)
        settings = settings.changed([one.removeprefix("task.") for one in self.bench.settings])
        rows = kind.read(task_file(options.task, self.bench.train), settings)
        base = bs.load(checkpoint())
        drawing = torch.Generator().manual_seed(0)
        self.encoder = base.folder.encoder(drawing)
        self.config = self.encoder.config
        self.objective = self.task = kind(self.config, drawing, kind.learnt(rows, settings, None), settings)
        self.items = self.task.items(rows, base.tokenizer)
        self.stream = ItemStream(self.task, self.items, 0)

    def inputs(self, number: int) -> Inputs:
        at = number * self.size
        some = [self.items[i] for i in self._order[at : at + self.size]]
        return {**pad_items(some), "labels": torch.tensor([item.target for item in some])}

    @cached_property
    def _order(self) -> Any:
        from bertsmith import rng

        return rng.permutation(0, "examples", len(self.items), 0)

    def model(self) -> nn.Module:
        import transformers

        kind = getattr(transformers, f"BertFor{KINDS[self.bench.verb]}")
        found: nn.Module = kind.from_pretrained(self.folder)
        return found


Told = dict[str, float | None]


def told(model: nn.Module, loss: Tensor) -> Told:
    """Of the first batch, without dropout: the loss, and the norm of all its gradients."""
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return {"loss": loss.item(), "gradient": norm.item()}


class Ours:
    """Our update, with AdamW and the dropout of the model."""

    def __init__(self, work: Work, precision: Precision, options: argparse.Namespace) -> None:
        self.work, self.updates = work, options.updates
        settings = TrainSettings(
            precision=precision,
            kernels="torch" if "torch alone" in options.side else "auto",
            batch_size=options.batch,
        )
        self.trainer = OurTrainer(work.encoder, work.objective, settings, options.device)
        self.device = self.trainer.place.device
        self.batches = work.batches() if self.device.type == "cpu" else beside(work)

    def first(self) -> Told:
        """Computed as in training, by its kernels."""
        trained, place = self.trainer.trained.eval(), self.trainer.place
        batch = place.to_device(self.work.stream.batch(0, 0, self.work.size))
        with place.autocast():
            total = trained.loss(batch).reduce(self.work.objective.counts(batch))
        found = told(trained, total)
        trained.train()
        return found

    def window(self) -> float:
        """Tokens a second of some updates; their batches are there before, or built beside them."""
        some = islice(self.batches, self.updates)
        if self.device.type == "cpu":
            some = iter(list(some))
        tokens, begin = 0, hardware.clock()
        for batch in some:
            self.trainer.update(batch, RATE)
            tokens += batch.tokens
        self.trainer.checks.settle()
        settle(self.device)
        return tokens / (hardware.clock() - begin)


def beside(work: Work) -> Iterator[Any]:
    """Batches in their order, built ahead by threads, as in a run."""
    for batch, _ in batches(work.stream, work.size, Position(), WORKERS):
        yield batch


class Reference:
    """The reference library's class in its users' loop: autocast, AdamW fused, clipping."""

    def __init__(self, work: Work, precision: Precision, options: argparse.Namespace) -> None:
        self.work, self.precision, self.updates = work, precision, options.updates
        self.device = torch.device(options.device)
        self.model = work.model().train().to(self.device)
        self.optimizer = make_adamw(self.model, TrainSettings())
        for group in self.optimizer.param_groups:
            group["lr"] = RATE
        self.run: Any = torch.compile(self.model) if "compiled" in options.side else self.model
        self.inputs = self.grouped() if "grouped" in options.side else self.as_they_come()

    def as_they_come(self) -> Iterator[Inputs]:
        """Batches in the order of ours."""
        number = 0
        while True:
            yield self.work.inputs(number)
            number += 1

    def grouped(self) -> Iterator[Inputs]:
        """Many batches' rows sorted by length, cut into batches again, these in an order of chance."""
        plain, chance = self.as_they_come(), random.Random(0)
        while True:
            rows = [row for inputs in islice(plain, GROUP) for row in rows_of(inputs)]
            rows.sort(key=lambda row: len(row["input_ids"]))
            some = [rows[at : at + self.work.size] for at in range(0, len(rows), self.work.size)]
            chance.shuffle(some)
            yield from map(batch_of, some)

    def first(self) -> Told:
        """By the library's own loss."""
        self.model.eval()
        with self.low():
            total = self.model(**self.sent(self.work.inputs(0))).loss
        found = told(self.model, total)
        self.model.train()
        return found

    def low(self) -> Any:
        """The context of its precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def sent(self, inputs: Inputs) -> Inputs:
        """On the device; there the host does not wait for the copy."""
        if self.device.type == "cpu":
            return inputs
        return {name: x.pin_memory().to(self.device, non_blocking=True) for name, x in inputs.items()}

    def window(self) -> float:
        """Real tokens a second of some updates."""
        some = list(islice(self.inputs, self.updates))
        begin = hardware.clock()
        for inputs in some:
            with self.low():
                loss = self.run(**self.sent(inputs)).loss
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.device.type == "cpu":
                loss.item()
        settle(self.device)
        real = sum(int(inputs["attention_mask"].sum()) for inputs in some)
        return real / (hardware.clock() - begin)


def rows_of(inputs: Inputs) -> Iterator[Inputs]:
    """A batch's rows without their padding."""
    for number, size in enumerate(inputs["attention_mask"].sum(1).tolist()):
        yield {
            name: value[number, :size] if value.dim() == 2 else value[number]
            for name, value in inputs.items()
        }


def batch_of(rows: Sequence[Inputs]) -> Inputs:
    """Rows padded to the longest of them."""
    found = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        filling = -100 if name == "labels" else 0
        is_row = values[0].dim() == 1
        found[name] = (
            nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=filling)
            if is_row
            else torch.stack(values)
        )
    return found


class Limit:
    """The products of matrices of an update, forward and backward, of the model's own shapes, and nothing else. In
    the last layer those of keys and values are of all tokens, and all others of those alone that a head reads, as
    in ours."""

    def __init__(self, work: Work, precision: Precision, options: argparse.Namespace) -> None:
        self.updates, self.device = options.updates, torch.device(options.device)
        config, batch = work.config, work.stream.batch(0, 0, work.size)
        tokens, width, inner = batch.tokens, config.hidden_size, config.intermediate_size
        sequences = read = batch.packed.sequences
        shapes = []
        if isinstance(work, Pretraining):
            predicted = work.objective.counts(batch)["mlm"]
            read += predicted
            whole = precision == "bf16" or self.device.type != "cpu"
            shapes += [(1, predicted, width, width), *of_vocabulary(predicted, config, whole=whole)]
        heads, head = config.num_attention_heads, width // config.num_attention_heads
        length = round(tokens / sequences)
        for rows in [tokens] * (config.num_hidden_layers - 1) + [read]:
            apart = [(1, tokens, width, 2 * width), (1, rows, width, width)]
            shapes += [(1, tokens, width, 3 * width)] if rows == tokens else apart
            shapes += [(1, rows, width, width), (1, rows, width, inner), (1, rows, inner, width)]
            asked = round(rows / sequences)
            shapes += [(sequences * heads, asked, head, length), (sequences * heads, asked, length, head)]
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        self.tokens, self.products = tokens, []
        for shape in shapes:
            x, weight, gradient = operands(*shape, kind, self.device)
            for one, other in ((x, weight), (gradient, weight.mT), (x.mT, gradient)):
                self.products.append((quickest_way(one, other), one, other))

    def first(self) -> Told:
        """It has none."""
        return {"loss": None, "gradient": None}

    def window(self) -> float:
        """Tokens a second, if nothing else were to be done."""
        begin = hardware.clock()
        for _ in range(self.updates):
            for way, x, y in self.products:
                way(x, y)
        settle(self.device)
        return self.updates * self.tokens / (hardware.clock() - begin)


def of_vocabulary(predicted: int, config: ModelConfig, *, whole: bool) -> list[tuple[int, ...]]:
    """The products of predicted tokens with the vocabulary: whole, or by parts of it, a column for each token,
    their number a multiple of 16, for which a processor's library is up to half as quick again in fp32."""
    width, words = config.hidden_size, config.vocab_size
    if whole:
        return [(1, predicted, width, words)]
    columns = -(-predicted // 16) * 16
    return [(1, end - begin, width, columns) for begin, end in vocabulary_chunks(words)]


def quickest_way(x: Tensor, y: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The way to x · y, one of them or many, that is quickest here: torch's, by oneDNN, or by our kernels."""
    ways: list[Callable[[Tensor, Tensor], Tensor]] = [torch.matmul]
    if x.dim() == 2 and x.is_cpu:
        ways += [way.matmul for way in products_here() if way is not ONEDNN or x.dtype == torch.float32]
    took: dict[int, list[float]] = {number: [] for number in range(len(ways))}
    for _ in range(TRIALS):
        for number, way in enumerate(ways):
            begin = hardware.clock()
            way(x, y)
            took[number].append(hardware.clock() - begin)
    return ways[min(took, key=lambda number: min(took[number]))]


@cache
def products_here() -> list[MatmulBackend]:
    """Other ways than the library's."""
    by_onednn = [ONEDNN] if hasattr(torch.ops.mkldnn, "_linear_pointwise") else []
    select_training_backend(
        "auto", WIDE, print
    )  # answers do not wait for kernels that have yet to be compiled
    return [*by_onednn, select_inference_backend(WIDE, print)]


def operands(
    count: int, rows: int, inner: int, columns: int, kind: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """x [rows, inner], weight [inner, columns], the product's gradient; `count` of them where there are more. On a
    GPU numbers of chance: it computes with ones at a higher clock."""
    shapes = ((rows, inner), (inner, columns), (rows, columns))
    made = torch.ones if device.type == "cpu" else torch.randn
    return tuple(made((count, *s) if count > 1 else s, dtype=kind, device=device) for s in shapes)
