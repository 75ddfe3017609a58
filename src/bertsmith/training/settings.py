"""The settings of `train.*`: length, learning rate, optimizer, checkpoints, and hardware of a training run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from bertsmith.settings import MayChange, Settings

_MAX_MINUTES = 5_256_000  # ten years
_MAX_UPDATES = 10**15  # the positions of a plan are exact up to here

_Beta = Annotated[float, Field(ge=0, lt=1)]
_Ratio = Annotated[float, Field(gt=0, lt=1)]

SchedulerType = Literal[
    "linear",
    "linear_google",
    "cosine",
    "constant_with_warmup",
    "warmup_stable_decay",
    "one_cycle",
    "one_cycle_linear",
    "step",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
]


def _as_tuple(value: Any) -> Any:
    """Return a single number as a tuple, so that one milestone needs no brackets."""
    return (value,) if isinstance(value, int | float) else value


class TrainSettings(Settings):
    """The settings of a training run that pre-training and fine-tuning share."""

    max_steps: MayChange[int | None] = Field(
        None, ge=1, le=_MAX_UPDATES, description="number of updates; with max_minutes: whichever comes first"
    )
    max_tokens: MayChange[int | None] = Field(
        None, ge=1, le=_MAX_UPDATES, description="number of tokens to train on, special tokens included"
    )
    max_minutes: MayChange[float | None] = Field(
        None,
        gt=0,
        le=_MAX_MINUTES,
        description="minutes that the run may take, from its start to the written model; with --resume the "
        "earlier parts count",
    )
    num_train_epochs: MayChange[float | None] = Field(
        1.0, gt=0, le=1e6, description="passes over the data, if no other budget is set"
    )
    batch_size: int = Field(32, ge=1, le=1 << 17, description="sequences in a batch, over all processes")
    gradient_accumulation_steps: int = Field(
        1, ge=1, le=100_000, description="batches whose gradients are accumulated for one update"
    )
    optim: Literal["adamw", "muon"] = Field(
        "adamw",
        description="the optimizer: adamw, or muon for the matrices of the layers and adamw for the rest",
    )
    learning_rate: float = Field(1e-4, gt=0, le=10, description="peak learning rate, after the warm-up")
    muon_learning_rate: float = Field(
        1e-2,
        gt=0,
        le=10,
        description="peak learning rate of Muon's matrices, on the scale of AdamW's; in pre-training, a change "
        "of learning_rate alone scales both",
    )
    muon_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of Muon")
    muon_weight_decay: float | None = Field(
        None, ge=0, le=10, description="weight decay of the matrices that Muon updates; none: weight_decay"
    )
    warmup_steps: float = Field(
        0.1,
        ge=0,
        description="length of the warm-up: below 1 a fraction of all updates, from 1 on a number of updates; a "
        "tenth, not the paper's 1 % (10,000 of a million), which would be a few dozen updates in a short run",
    )
    lr_scheduler_type: SchedulerType = Field(
        "linear",
        description="learning rate after the warm-up: linear (to 0 at the last update), linear_google (as in "
        "BERT's released code: on the line that falls from the first update on), cosine, constant_with_warmup, "
        "warmup_stable_decay (constant, then linear to 0 over the last decay_ratio), one_cycle (up and down along "
        "cosines), one_cycle_linear (up and down along lines, with a cycle of adam_beta1), step (times "
        "lr_decay_factor at each of lr_milestones), inverse_sqrt, or in fine-tuning reduce_lr_on_plateau (times "
        "lr_decay_factor if evaluations do not improve)",
    )
    decay_ratio: float = Field(
        0.4, gt=0, le=1, description="fraction of the updates over which warmup_stable_decay falls to 0"
    )
    pct_start: float = Field(
        0.5, gt=0, lt=1, description="fraction of the updates at which one_cycle_linear reaches the peak"
    )
    lr_decay_factor: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="factor by which the schedules step and reduce_lr_on_plateau multiply the learning rate",
    )
    lr_milestones: Annotated[tuple[_Ratio, ...], BeforeValidator(_as_tuple)] = Field(
        (0.5, 0.75),
        min_length=1,
        description="fractions of the updates after which the schedule step lowers the learning rate",
    )
    weight_decay: float = Field(0.01, ge=0, le=10, description="weight decay; biases and LayerNorm have none")
    adam_beta1: _Beta = Field(0.9, description="beta 1 of AdamW")
    adam_beta2: _Beta = Field(0.999, description="beta 2 of AdamW")
    adam_epsilon: float = Field(1e-6, gt=0, le=1, description="epsilon of AdamW")
    bias_correction: bool = Field(
        True,
        description="whether AdamW corrects the bias of its running means; BERT's released code does not (false): "
        "its first update is 3.16 times the learning rate",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="norm to which gradients are clipped")
    logging_steps: int = Field(10, ge=1, description="updates between two lines of log.jsonl")
    eval_steps: int | None = Field(
        None,
        ge=1,
        description="updates between two evaluations; none: once an epoch in "
        "fine-tuning, and after the last update only in pre-training",
    )
    save_steps: MayChange[int] = Field(500, ge=1, description="updates between two checkpoints")
    save_total_limit: MayChange[int] = Field(2, ge=1, description="number of checkpoints to keep")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of everything random")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="precision of matrix products: fp32, bf16, or auto: bf16 if the device can compute in it",
    )
    kernels: MayChange[Literal["auto", "torch", "numba", "flash", "triton"]] = Field(
        "auto",
        description="kernels of the encoder's operations. On a CPU: torch, or numba, which is compiled and faster "
        "(the extra fast); auto: numba if it is installed and the hidden size is at least 128. On a GPU in bf16: "
        "torch, flash (flash attention over sequences of any length), or triton (fused layers); auto: triton in "
        "runs of at least 500 updates, otherwise flash",
    )
    cuda_graphs: MayChange[bool] = Field(
        True,
        description="on a GPU with the kernels triton and one batch per update: capture the passes of an update "
        "as CUDA graphs, so that the GPU does not wait for the host; batches are padded to a few shapes",
    )
    deterministic: MayChange[bool] = Field(
        False,
        description="on a GPU: use only deterministic algorithms, which are slower, so that an interrupted run "
        "resumes bit for bit, as it always does on a CPU",
    )
    device: str = Field("auto", description="cpu, cuda, or cuda:1; auto: a GPU if there is one")
    threads: MayChange[int | None] = Field(
        None, ge=1, le=1024, description="number of threads; none: OMP_NUM_THREADS, or the number of cores"
    )
    dataloader_num_workers: MayChange[int] = Field(
        1, ge=0, le=256, description="threads that build batches in advance; 0: the training loop builds them"
    )
    fsdp: MayChange[bool] = Field(
        False,
        description="shard weights, gradients, and optimizer state over the processes (FSDP2), for a training run "
        "that does not fit into the memory of one; AdamW only",
    )
    report_to: MayChange[tuple[Literal["tensorboard", "wandb", "mlflow"], ...]] = Field(
        ("tensorboard",),
        description="trackers that get the metrics besides log.jsonl: tensorboard, wandb, mlflow, or several, "
        "such as wandb,mlflow; none: log.jsonl only",
    )

    @field_validator("report_to", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        if value in (None, "", "none"):
            return ()
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_settings(self) -> TrainSettings:
        if self.fsdp and self.optim == "muon":
            raise ValueError("train.fsdp shards, and Muon needs whole matrices: set train.optim=adamw")
        budgets = [n for n in ("max_steps", "max_tokens", "max_minutes") if getattr(self, n) is not None]
        if len(budgets) > 1 and budgets != ["max_steps", "max_minutes"]:
            raise ValueError(f"{' and '.join(budgets)} are both budgets: set all but one to none")
        return self
