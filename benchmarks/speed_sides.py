"""The sides of speed.py; each is served in a process of its own.

A side is ours or the reference in a precision, or the limit: the model's matrix products alone. All see the same
batches and start with the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

import bertsmith as bs
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.hardware import Precision
from bertsmith.instances.batches import SyntheticStream
from bertsmith.kernels.backend_selection import select_inference_backend, select_training_backend
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.matmul import ONEDNN
from bertsmith.models.pretraining_heads import vocabulary_chunks
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tasks.batching import ItemStream
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.registry import get_task
from bertsmith.training.data_loader import START, iterate_batches
from bertsmith.training.settings import TrainSettings
from corpus import prepare_corpus
from finetune import TASKS, checkpoint, task_file
from ours import OurTrainer
from reference import instance_streams, load_reference, make_adamw, pad_batch, pad_packed, write_model

LEARNING_RATE, MLM_PROBABILITY = 1e-4, 0.15
NATURAL_LENGTH = 128  # the longest pair of sentences
GPU_LOADER_THREADS = 4
MATMUL_TRIALS = 4
KERNEL_WIDTH = 128  # a hidden size for which compiled kernels are chosen
GROUPED_BATCHES = 50  # sorted by length together, as the reference's Trainer does
REFERENCE_CLASSES = {"classify": "BertForSequenceClassification"}

Inputs = dict[str, Tensor]
Matmul = Callable[[Tensor, Tensor], Tensor]


def serve(options: argparse.Namespace) -> None:
    """Answer each word on stdin (begin, window, memory) with a line of JSON."""
    answers, sys.stdout = sys.stdout, sys.stderr  # other prints must not mix with the answers
    hardware.configure_process(options.threads)
    workload: Workload = Pretraining(options) if options.what == "train" else Finetuning(options)
    name, precision = options.side.split(", ")[:2]
    if precision == "compiled":
        precision = hardware.choose_precision(torch.device(options.device))
    side: Any = {"ours": Ours, "reference": Reference, "limit": Limit}[name](workload, precision, options)
    for word in map(str.strip, sys.stdin):
        if word == "begin":
            answer = {"precision": precision, **side.first_loss()}
        elif word == "window":
            answer = {"rate": side.tokens_per_second()}
        else:
            answer = {"mib": peak_mib(torch.device(options.device))}
        print(json.dumps(answer), file=answers, flush=True)


def peak_mib(device: torch.device) -> float:
    """Return the peak memory of this process, or of its GPU."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated(device) / 2**20


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)


class Workload:
    """Initial weights, and batches for both libraries.

    reference_class: the class of transformers that computes the same.
    """

    config: ModelConfig
    encoder: Any
    objective: Any
    stream: Any
    reference_class: str

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch_size = options.batch

    def batch(self, index: int) -> Any:
        """Return a batch of ours."""
        return self.stream.batch(0, index * self.batch_size, (index + 1) * self.batch_size)

    def inputs(self, batch: Any) -> Inputs:
        """Return a batch as the reference takes it: padded, with labels."""
        raise NotImplementedError

    def reference_model(self) -> nn.Module:
        """Return the reference's model with the same weights."""
        return load_reference(
            write_model(f"speed-{os.getpid()}", self.encoder, self.objective), self.reference_class
        )


class Pretraining(Workload):
    """Masked LM and next sentence prediction on random text or the encyclopedia."""

    reference_class = "BertForPreTraining"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.config = preset(options.preset)
        if options.lengths == "natural":
            shards = Shards.open(prepare_corpus())
            self.config = preset(options.preset, vocab_size=shards.tokenizer.vocab_size)
            data = {"instances": "sentence_pair", "sequence_length": NATURAL_LENGTH}
            settings = PretrainSettings.of({"model": self.config.model_dump(), "data": data}, "speed")
            self.stream, _ = instance_streams(shards, settings)
        else:
            length = int(options.lengths.removeprefix("fixed:"))
            self.stream = SyntheticStream(self.config.vocab_size, length, MLM_PROBABILITY)
        self.encoder = build_encoder(self.config, torch.Generator().manual_seed(0))
        self.objective = MaskedLM(self.config, self.encoder.generator)

    def inputs(self, batch: Any) -> Inputs:
        return pad_batch(batch)


class Finetuning(Workload):
    """A classification task on its own training examples, from a published checkpoint."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        bench = TASKS[options.task]
        if bench.verb not in REFERENCE_CLASSES:
            raise SystemExit(f"--task {options.task}: not a classification task")
        self.reference_class = REFERENCE_CLASSES[bench.verb]
        declaration = get_task(bench.verb)
        settings = declaration.settings_type.of({}, options.task)
        settings = settings.changed([assignment.removeprefix("task.") for assignment in bench.settings])
        data = declaration.part("data")(settings, {})
        examples = data.read(task_file(options.task, bench.train))
        base = bs.load(checkpoint())
        generator = torch.Generator().manual_seed(0)
        self.encoder = base.folder.encoder(generator)
        self.config = self.encoder.config
        metadata = data.fit_metadata(examples, None)
        task = FittedTask.create(declaration, self.config, generator, metadata, settings)
        self.objective = task.model
        self.stream = ItemStream(task.model.collate, task.encode(examples, base.tokenizer), 0)

    def inputs(self, batch: Any) -> Inputs:
        return {**pad_packed(batch.packed), "labels": batch.tensors["label"]}


def loss_and_gradient_norm(model: nn.Module, loss: Tensor) -> dict[str, float | None]:
    """Return the loss and the norm of all its gradients."""
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return {"loss": loss.item(), "gradient": norm.item()}


class Ours:
    """Training steps of bertsmith with AdamW and the model's dropout."""

    def __init__(self, workload: Workload, precision: Precision, options: argparse.Namespace) -> None:
        self.workload, self.updates = workload, options.updates
        settings = TrainSettings(
            precision=precision,
            kernels="torch" if "torch alone" in options.side else "auto",
            batch_size=options.batch,
        )
        self.trainer = OurTrainer(workload.encoder, workload.objective, settings, options.device)
        self.device = self.trainer.context.device
        threads = 0 if self.device.type == "cpu" else GPU_LOADER_THREADS
        self.batches = iterate_batches(workload.stream, options.batch, START, threads)

    def first_loss(self) -> dict[str, float | None]:
        """Return loss and gradient norm of the first batch without dropout, by the kernels of training."""
        trained, context = self.trainer.trained.eval(), self.trainer.context
        batch = context.to_device(self.workload.batch(0))
        with context.autocast():
            loss = trained.loss(batch).reduce(self.workload.objective.counts(batch))
        figures = loss_and_gradient_norm(trained, loss)
        trained.train()
        return figures

    def tokens_per_second(self) -> float:
        """Time some updates; on a CPU their batches are built before, on a GPU meanwhile."""
        window: Any = islice(self.batches, self.updates)
        if self.device.type == "cpu":
            window = list(window)
        tokens, start = 0, hardware.clock()
        for batch, _ in window:
            self.trainer.train_step(batch, LEARNING_RATE)
            tokens += batch.tokens
        self.trainer.finite_check.wait()
        synchronize(self.device)
        return tokens / (hardware.clock() - start)


class Reference:
    """The reference's model in the loop of its users: autocast, fused AdamW, and gradient clipping."""

    def __init__(self, workload: Workload, precision: Precision, options: argparse.Namespace) -> None:
        self.workload, self.updates = workload, options.updates
        self.device = torch.device(options.device)
        self.autocast = partial(torch.autocast, self.device.type, torch.bfloat16, enabled=precision == "bf16")
        self.model = workload.reference_model().train().to(self.device)
        self.optimizer = make_adamw(self.model, TrainSettings())
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE
        self.forward: Any = torch.compile(self.model) if "compiled" in options.side else self.model
        batches_of_ours = iterate_batches(workload.stream, options.batch, START, 0)
        self.inputs: Iterator[Inputs] = (workload.inputs(batch) for batch, _ in batches_of_ours)
        if "grouped" in options.side:
            self.inputs = grouped_by_length(self.inputs, options.batch)

    def first_loss(self) -> dict[str, float | None]:
        """Return loss and gradient norm of the first batch without dropout."""
        self.model.eval()
        with self.autocast():
            loss = self.model(**self.to_device(self.workload.inputs(self.workload.batch(0)))).loss
        figures = loss_and_gradient_norm(self.model, loss)
        self.model.train()
        return figures

    def to_device(self, inputs: Inputs) -> Inputs:
        """Copy a batch to the device; the host does not wait for a GPU."""
        if self.device.type == "cpu":
            return inputs
        return {name: x.pin_memory().to(self.device, non_blocking=True) for name, x in inputs.items()}

    def tokens_per_second(self) -> float:
        """Time some updates on batches that were built before; padding does not count."""
        window = list(islice(self.inputs, self.updates))
        start = hardware.clock()
        for inputs in window:
            with self.autocast():
                loss = self.forward(**self.to_device(inputs)).loss
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.device.type == "cpu":
                loss.item()
        synchronize(self.device)
        tokens = sum(int(inputs["attention_mask"].sum()) for inputs in window)
        return tokens / (hardware.clock() - start)


def grouped_by_length(inputs: Iterator[Inputs], batch_size: int) -> Iterator[Inputs]:
    """Sort the rows of many batches by length and batch them again, in random order."""
    shuffler = random.Random(0)
    while True:
        rows = [row for batch in islice(inputs, GROUPED_BATCHES) for row in unpadded_rows(batch)]
        rows.sort(key=lambda row: len(row["input_ids"]))
        groups = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        shuffler.shuffle(groups)
        yield from map(padded_rows, groups)


def unpadded_rows(inputs: Inputs) -> Iterator[Inputs]:
    """Yield a batch's rows without padding."""
    for i, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        yield {name: x[i, :length] if x.dim() == 2 else x[i] for name, x in inputs.items()}


def padded_rows(rows: Sequence[Inputs]) -> Inputs:
    """Return a batch of rows, padded to the longest."""
    return {
        name: nn.utils.rnn.pad_sequence(
            [row[name] for row in rows], batch_first=True, padding_value=-100 if name == "labels" else 0
        )
        if rows[0][name].dim()
        else torch.stack([row[name] for row in rows])
        for name in rows[0]
    }


class Limit:
    """The matrix products of an update, forward and backward, of the model's own shapes, and nothing else.

    As in ours, the last layer computes keys and values for all tokens, and everything else only for the rows
    that a head reads.
    """

    def __init__(self, workload: Workload, precision: Precision, options: argparse.Namespace) -> None:
        self.updates, self.device = options.updates, torch.device(options.device)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        batch = workload.batch(0)
        self.tokens = batch.tokens
        num_predicted = workload.objective.counts(batch)["mlm"] if isinstance(workload, Pretraining) else 0
        shapes = encoder_shapes(workload.config, batch, num_predicted)
        if num_predicted:
            is_chunked = precision == "fp32" and self.device.type == "cpu"
            shapes += head_shapes(workload.config, num_predicted, is_chunked=is_chunked)
        self.products = []
        for shape in shapes:
            x, weight, grad = operands(shape, dtype, self.device)
            for a, b in ((x, weight), (grad, weight.mT), (x.mT, grad)):
                self.products.append((fastest_matmul(a, b), a, b))

    def first_loss(self) -> dict[str, float | None]:
        """Return nothing to compare."""
        return {"loss": None, "gradient": None}

    def tokens_per_second(self) -> float:
        """Time the products of some updates."""
        start = hardware.clock()
        for _ in range(self.updates):
            for matmul, a, b in self.products:
                matmul(a, b)
        synchronize(self.device)
        rate: float = self.updates * self.tokens / (hardware.clock() - start)
        return rate


Shape = tuple[int, int, int, int]  # number of products, rows, inner dimension, columns


def encoder_shapes(config: ModelConfig, batch: Any, num_predicted: int) -> list[Shape]:
    """Return the shapes of the forward products of all layers."""
    hidden, inner, num_heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    tokens, num_sequences = batch.tokens, batch.packed.num_sequences
    length, head_size = round(tokens / num_sequences), hidden // num_heads
    shapes: list[Shape] = []
    for layer in range(config.num_hidden_layers):
        if layer < config.num_hidden_layers - 1:
            rows = tokens
            shapes.append((1, tokens, hidden, 3 * hidden))
        else:
            rows = num_sequences + num_predicted
            shapes += [(1, tokens, hidden, 2 * hidden), (1, rows, hidden, hidden)]
        shapes += [(1, rows, hidden, hidden), (1, rows, hidden, inner), (1, rows, inner, hidden)]
        num_queries = round(rows / num_sequences)
        shapes.append((num_sequences * num_heads, num_queries, head_size, length))
        shapes.append((num_sequences * num_heads, num_queries, length, head_size))
    return shapes


def head_shapes(config: ModelConfig, num_predicted: int, *, is_chunked: bool) -> list[Shape]:
    """Return the shapes of the masked-LM head's forward products.

    is_chunked: multiply by chunks of the vocabulary, with the predicted tokens as columns, their number a multiple
    of 16: in fp32 a CPU's library is up to 1.5 times as fast.
    """
    hidden = config.hidden_size
    transform = (1, num_predicted, hidden, hidden)
    if not is_chunked:
        return [transform, (1, num_predicted, hidden, config.vocab_size)]
    columns = -(-num_predicted // 16) * 16
    chunks = vocabulary_chunks(config.vocab_size)
    return [transform, *((1, stop - start, hidden, columns) for start, stop in chunks)]


def fastest_matmul(a: Tensor, b: Tensor) -> Matmul:
    """Return the fastest way to compute a · b here: by torch, by oneDNN, or by our kernels."""
    candidates: list[Matmul] = [torch.matmul]
    if a.dim() == 2 and a.is_cpu:
        candidates.append(inference_matmul())
        if a.dtype == torch.float32 and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            candidates.append(ONEDNN.matmul)
    seconds: list[list[float]] = [[] for _ in candidates]
    for _ in range(MATMUL_TRIALS):
        for matmul, times in zip(candidates, seconds, strict=True):
            start = hardware.clock()
            matmul(a, b)
            times.append(hardware.clock() - start)
    return candidates[min(range(len(candidates)), key=lambda i: min(seconds[i]))]


@cache
def inference_matmul() -> Matmul:
    """Return the matrix product of our inference kernels, compiled."""
    select_training_backend("auto", KERNEL_WIDTH)  # compiles them; select_inference_backend would not wait
    return select_inference_backend(KERNEL_WIDTH).matmul


def operands(shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return x [rows, inner], weight [inner, columns], and the product's gradient, batched if there are several.

    They are ones on a CPU, and random on a GPU, whose clock is higher with ones.
    """
    count, rows, inner, columns = shape
    batch = (count,) if count > 1 else ()
    fill = torch.ones if device.type == "cpu" else torch.randn
    x, weight, grad = (
        fill((*batch, *size), dtype=dtype, device=device)
        for size in ((rows, inner), (inner, columns), (rows, columns))
    )
    return x, weight, grad
