"""The BERT of transformers, trained as its users train it, on the batches of bertsmith."""

from __future__ import annotations

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
from bertsmith.packed import Packed
from bertsmith.pretraining.data import create_stream
from bertsmith.pretraining.model import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.training.data_loader import DataPosition, iterate_batches
from bertsmith.training.lr_schedule import learning_rate, warmup_updates
from bertsmith.training.settings import TrainSettings
from record import WORK, median_and_range, ratios


def make_settings(shards: Shards, *assignments: str) -> PretrainSettings:
    """Return the settings of a bert-mini-uncased run on these shards, changed by `--set` assignments."""
    sizes = preset("bert-mini-uncased", vocab_size=shards.tokenizer.vocab_size).model_dump()
    return PretrainSettings.of({"model": sizes}, "benchmark").changed(assignments)


def initial_weights(settings: PretrainSettings, counts: Any = None) -> tuple[Encoder, Objective]:
    """Return encoder and objective as at the start of a run. counts: the corpus's token counts, if they matter."""
    return first_weights(settings, torch.Generator().manual_seed(settings.train.seed), counts)


def build_reference(settings: PretrainSettings, counts: Any = None) -> nn.Module:
    """Return the reference's BertForPreTraining with the initial weights of ours."""
    return load_reference(write_model("first-weights", *initial_weights(settings, counts)))


def write_model(name: str, encoder: Encoder, objective: Objective) -> Path:
    """Write a model folder below WORK and return its path."""
    parts = objective.export(encoder)[MODEL]
    return write_folder(
        WORK / name, parts.config, parts.modules, labels=parts.labels, problem_type=parts.problem_type
    )


def load_reference(folder: Path, class_name: str = "BertForPreTraining") -> nn.Module:
    """Load a model folder by a class of transformers. RuntimeError if a weight is missing or unexpected."""
    import transformers

    model_class: Any = getattr(transformers, class_name)
    model: nn.Module
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise RuntimeError(f"{class_name} does not load {folder} cleanly: {report}")
    return model


def instance_streams(shards: Shards, settings: PretrainSettings) -> tuple[InstanceStream, InstanceStream]:
    """Return the training and validation instances of a pre-training run."""
    split, length = DocumentSplit.from_settings(shards, settings.data), settings.data.sequence_length
    return (
        create_stream(shards, split.train, settings, length),
        create_stream(shards, split.validation, settings, length, seed=VALIDATION_SEED),
    )


def batches_after(stream: InstanceStream, size: int, step: int) -> Iterator[MaskedBatch]:
    """Yield the batches that follow `step` training steps, endlessly."""
    epoch, start = 0, step * size
    while start >= stream.size(epoch):
        start -= -(-stream.size(epoch) // size) * size
        epoch += 1
    for batch, _ in iterate_batches(stream, size, DataPosition(epoch, start), 0):
        assert isinstance(batch, MaskedBatch)
        yield batch


def pad_packed(packed: Packed) -> dict[str, Tensor]:
    """Return packed sequences as the reference takes them: padded to the longest, with a mask."""
    return {
        "input_ids": packed.pad(packed.tokens),
        "token_type_ids": packed.pad(packed.segments),
        "attention_mask": packed.pad(torch.ones_like(packed.tokens)),
    }


def pad_batch(batch: MaskedBatch) -> dict[str, Tensor]:
    """Return a batch as the reference's collators do; its labels are -100 if not masked."""
    labels = torch.full_like(batch.packed.tokens, -100)
    labels[batch.rows] = batch.labels
    targets = {"labels": batch.packed.pad(labels, -100), "next_sentence_label": batch.pair_labels}
    return {**pad_packed(batch.packed), **targets}


def make_adamw(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """Return AdamW as the reference's Trainer does: fused, no decay for biases and LayerNorm."""
    decayed: list[nn.Parameter] = []
    without_decay: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_excluded = name.endswith("bias") or "LayerNorm" in name
        (without_decay if is_excluded else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": without_decay, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, settings: TrainSettings) -> None:
    """Set the learning rate that a run with these settings has at this step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(step, settings)


def learning_rate_at(step: int, settings: TrainSettings) -> float:
    """Return the learning rate that a run with these settings has at this step."""
    updates = settings.max_steps or 1
    return learning_rate(step, warmup_updates(settings.warmup_steps, updates), updates, settings)


class ReferenceTrainer:
    """The reference's usual training loop: AdamW, gradient clipping, and our learning rates."""

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        self.model, self.settings, self.step = model.train(), settings, 0
        self.optimizer = make_adamw(model, settings)

    def train_step(self, batch: MaskedBatch) -> dict[str, float]:
        """Make one training step. Return both losses before it."""
        self.step += 1
        inputs = pad_batch(batch)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bf16"):
            output = self.model(**inputs)
        output.loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        set_learning_rate(self.optimizer, self.step, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            nsp = nn.functional.cross_entropy(output.seq_relationship_logits, inputs["next_sentence_label"])
        return {"mlm": output.loss.item() - nsp.item(), "nsp": nsp.item()}

    def evaluate(self, batches: Sequence[MaskedBatch]) -> dict[str, float]:
        """Return losses and accuracies of validation batches, as our objective computes them."""
        self.model.eval()
        sums = dict.fromkeys(("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"), 0.0)
        counts = {"mlm": 0, "nsp": 0}
        with torch.inference_mode():
            for batch in batches:
                inputs = pad_batch(batch)
                labels, pair_labels = inputs.pop("labels"), inputs.pop("next_sentence_label")
                output, is_masked = self.model(**inputs), labels >= 0
                for name, logits, expected in (
                    ("mlm", output.prediction_logits[is_masked], labels[is_masked]),
                    ("nsp", output.seq_relationship_logits, pair_labels),
                ):
                    loss = nn.functional.cross_entropy(logits, expected, reduction="sum")
                    sums[f"{name}_loss"] += loss.item()
                    sums[f"{name}_accuracy"] += (logits.argmax(-1) == expected).sum().item()
                    counts[name] += len(expected)
        self.model.train()
        return {name: value / counts[name[:3]] for name, value in sums.items()}

    def save(self, file: Path) -> None:
        """Save the state by pickle, for benchmarks alone, so that they can resume."""
        temporary = file.with_suffix(".writing")
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, temporary)
        temporary.replace(file)

    def restore(self, file: Path) -> None:
        """Load what `save` wrote, if the file exists."""
        if file.exists():
            state = torch.load(file, weights_only=True)
            self.step = state["step"]
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])


def time_interleaved(windows: Iterable[tuple[int, Callable[[], None], Callable[[], None]]]) -> dict[str, Any]:
    """Time both sides alternately. Return their tokens per second and the ratios by window.

    windows: (number of tokens, run of ours, run of the reference); the first one only warms up.
    """
    rates: dict[str, list[float]] = {"ours": [], "reference": []}
    for window, (tokens, ours, reference) in enumerate(windows):
        for name, run in (("ours", ours), ("reference", reference)):
            start = time.perf_counter()
            run()
            if window:
                rates[name].append(tokens / (time.perf_counter() - start))
        print(window, {name: values[-1:] for name, values in rates.items()}, flush=True)
    by_window = ratios(rates["ours"], rates["reference"])
    return {
        "ours": statistics.median(rates["ours"]),
        "reference": statistics.median(rates["reference"]),
        "ratio": statistics.median(by_window),
        "ratios": by_window,
        "precision": hardware.choose_precision(),
    }


def describe_rates(rates: dict[str, Any]) -> str:
    """Describe the result of `time_interleaved` in sentences for RESULTS.md."""
    return (
        f"Real tokens per second in {rates['precision']}, median of {len(rates['ratios'])} interleaved windows: "
        f"ours {rates['ours']:,.0f}, reference {rates['reference']:,.0f}; ratio "
        f"{median_and_range(rates['ratios'])}. Both run in one process that was set up as "
        "ours is (freed memory kept), which speeds up the reference, too."
    )
