"""The reference library's BERT trained as its users train it, on the batches of ours."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.shards import Shards
from bertsmith.instances.batches import InstanceStream, MaskedBatch
from bertsmith.instances.holdout_split import VALIDATION_SEED, DocumentSplit
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import preset
from bertsmith.objectives.objective import MODEL, Objective
from bertsmith.pretraining.data import instances_of
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.training.lr_schedule import learning_rate, warmup_updates
from bertsmith.training.settings import TrainSettings
from record import WORK, median_and_range, ratios


def make_settings(shards: Shards, *assignments: str) -> PretrainSettings:
    """The settings of a bert-mini-uncased run on these shards, with `--set` assignments."""
    sizes = preset("bert-mini-uncased", vocab_size=shards.tokenizer.vocab_size).model_dump()
    return PretrainSettings.of({"model": sizes}, "benchmark").changed(assignments)


def build_reference(chosen: PretrainSettings, counts: Any = None) -> nn.Module:
    """The reference library's BertForPreTraining with our first weights, through a folder on disk."""
    return load_reference(write_model("first-weights", *initial_weights(chosen, counts)))


def initial_weights(chosen: PretrainSettings, counts: Any = None) -> tuple[Encoder, Objective]:
    """Encoder and objective as a run with these settings begins."""
    return first_weights(chosen, torch.Generator().manual_seed(chosen.train.seed), counts)


def write_model(name: str, encoder: Encoder, objective: Objective) -> Path:
    """The folder that these weights were written to."""
    parts = objective.export(encoder)[MODEL]
    return write_folder(WORK / name, parts.config, parts.modules)


def load_reference(folder: Path) -> nn.Module:
    """The reference library's BertForPreTraining from one of our folders; every key must be there."""
    from transformers import BertForPreTraining

    model, report = BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise RuntimeError(f"the folder does not load cleanly: {report}")
    return model


def instance_streams(shards: Shards, chosen: PretrainSettings) -> tuple[InstanceStream, InstanceStream]:
    """Training and held-out instances, as the pre-training workflow makes them."""
    split, length = DocumentSplit.from_settings(shards, chosen.data), chosen.data.sequence_length
    return (
        instances_of(shards, split.train, chosen, length, kin=split.duplicate_groups),
        instances_of(
            shards, split.validation, chosen, length, kin=split.duplicate_groups, seed=VALIDATION_SEED
        ),
    )


def pad_batch(batch: MaskedBatch) -> dict[str, Tensor]:
    """One of our batches in the form that the reference's collators give: padded, labels -100 elsewhere."""
    packed = batch.packed
    labels = torch.full_like(packed.tokens, -100)
    labels[batch.rows] = batch.labels
    return {
        "input_ids": packed.pad(packed.tokens),
        "token_type_ids": packed.pad(packed.segments),
        "attention_mask": packed.pad(torch.ones_like(packed.tokens)),
        "labels": packed.pad(labels, -100),
        "next_sentence_label": batch.pair_labels,
    }


def make_adamw(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW as the reference's Trainer makes it: by names, fused (its default with this version of torch)."""
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    kept = {id(p) for p in plain}
    decayed = [p for p in model.parameters() if id(p) not in kept]
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, settings: TrainSettings) -> None:
    """The learning rate that our loop has at this step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(step, settings)


def learning_rate_at(step: int, settings: TrainSettings) -> float:
    """The learning rate of our loop's update number `step`."""
    updates = settings.max_steps or 1
    return learning_rate(
        step,
        peak=settings.learning_rate,
        warmup=warmup_updates(settings.warmup, updates),
        updates=updates,
        shape=settings.schedule,
    )


class ReferenceTrainer:
    """The reference's usual loop: AdamW without decay on biases and LayerNorm, clipping, our learning rates."""

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        self.model, self.settings, self.step = model.train(), settings, 0
        self.optimizer = make_adamw(model, settings)

    def update(self, batch: MaskedBatch) -> dict[str, float]:
        """One step; the two losses before it."""
        self.step += 1
        inputs = pad_batch(batch)
        labels, pairs = inputs.pop("labels"), inputs.pop("next_sentence_label")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bf16"):
            out = self.model(**inputs, labels=labels, next_sentence_label=pairs)
        out.loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        set_learning_rate(self.optimizer, self.step, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            nsp = nn.functional.cross_entropy(out.seq_relationship_logits, pairs).item()
        return {"mlm": out.loss.item() - nsp, "nsp": nsp}

    def evaluate(self, batches: Sequence[MaskedBatch]) -> dict[str, float]:
        """Held-out losses and accuracies, as our objective measures them."""
        self.model.eval()
        sums = dict.fromkeys(("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"), 0.0)
        rows = pairs = 0
        with torch.inference_mode():
            for batch in batches:
                inputs = pad_batch(batch)
                labels, order = inputs.pop("labels"), inputs.pop("next_sentence_label")
                out = self.model(**inputs)
                mlm, truth = out.prediction_logits[labels >= 0], labels[labels >= 0]
                sums["mlm_loss"] += nn.functional.cross_entropy(mlm, truth, reduction="sum").item()
                sums["mlm_accuracy"] += (mlm.argmax(-1) == truth).sum().item()
                nsp = out.seq_relationship_logits
                sums["nsp_loss"] += nn.functional.cross_entropy(nsp, order, reduction="sum").item()
                sums["nsp_accuracy"] += (nsp.argmax(-1) == order).sum().item()
                rows, pairs = rows + len(truth), pairs + len(order)
        self.model.train()
        return {name: value / (rows if name[0] == "m" else pairs) for name, value in sums.items()}

    def save(self, file: Path) -> None:
        """For this script alone, so that it can be killed: the product never writes pickles."""
        beside = file.with_suffix(".writing")
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, beside)
        beside.replace(file)

    def restore(self, file: Path) -> None:
        """Go on from `save`."""
        if file.exists():
            state = torch.load(file, weights_only=True)
            self.step = state["step"]
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])


def batches_after(stream: InstanceStream, size: int, step: int) -> Iterator[MaskedBatch]:
    """The batches that follow `step` updates of `size` instances, as the loader gives them."""
    epoch, start = 0, step * size
    while start >= stream.size(epoch):
        start -= math.ceil(stream.size(epoch) / size) * size
        epoch += 1
    while True:
        if start >= stream.size(epoch):
            epoch, start = epoch + 1, 0
        yield stream.batch(epoch, start, start + size)
        start += size


def time_interleaved(windows: Iterable[tuple[int, Callable[[], None], Callable[[], None]]]) -> dict[str, Any]:
    """Time windows of both sides in turn: (tokens, ours, reference) each; the first one only warms up."""
    rates: dict[str, list[float]] = {"ours": [], "reference": []}
    for number, (tokens, ours, reference) in enumerate(windows):
        for name, run in (("ours", ours), ("reference", reference)):
            begin = time.perf_counter()
            run()
            if number:
                rates[name].append(tokens / (time.perf_counter() - begin))
        print(number, {name: values[-1:] for name, values in rates.items()}, flush=True)
    by_window = ratios(rates["ours"], rates["reference"])
    return {
        "ours": statistics.median(rates["ours"]),
        "reference": statistics.median(rates["reference"]),
        "ratio": statistics.median(by_window),
        "ratios": by_window,
        "precision": hardware.choose_precision().precision,
    }


def describe_rates(rate: dict[str, Any]) -> str:
    """What `in_turn` found, in a sentence."""
    return (
        f"Real tokens a second in {rate['precision']}, median of {len(rate['ratios'])} windows in turn: "
        f"ours {rate['ours']:,.0f}, reference {rate['reference']:,.0f}; ratio "
        f"{median_and_range(rate['ratios'])}. Both run in one process that was set up as "
        "ours is (freed memory kept), which speeds the reference up too."
    )
