"""How long, how fast and how carefully a model is trained: what a user may set of the loop."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from bertsmith.settings import MAY_CHANGE, Settings
from bertsmith.training.lr_schedule import Shape

_LONGEST_MINUTES = 5_256_000  # ten years
_MOST_UPDATES = 10**15  # a plan counts so far, exactly

_Beta = Annotated[float, Field(ge=0, lt=1)]
_Share = Annotated[float, Field(gt=0, lt=1)]


def _one_or_more(value: Any) -> Any:
    """One share may be given as it is, without brackets."""
    return (value,) if isinstance(value, int | float) else value


class TrainSettings(Settings):
    """How long, how fast and how carefully a model is trained."""

    max_steps: int | None = Field(
        None,
        ge=1,
        le=_MOST_UPDATES,
        description="updates to make; with max_minutes: whichever is reached first",
        json_schema_extra=MAY_CHANGE,
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=_MOST_UPDATES,
        description="tokens to train on, special ones included",
        json_schema_extra=MAY_CHANGE,
    )
    max_minutes: float | None = Field(
        None,
        gt=0,
        le=_LONGEST_MINUTES,
        description="minutes that the run may take, from its start to the written model; on --resume the earlier "
        "parts count",
        json_schema_extra=MAY_CHANGE,
    )
    epochs: float = Field(
        1.0,
        gt=0,
        le=1e6,
        description="passes over the data, where no other budget is given",
        json_schema_extra=MAY_CHANGE,
    )
    batch_size: int = Field(32, ge=1, description="sequences in a batch")
    accumulate: int = Field(1, ge=1, description="batches whose gradients make one update")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="adamw for all, or muon for the layers' matrices and adamw for the rest",
    )
    learning_rate: float = Field(
        1e-4, gt=0, le=10, description="the highest learning rate, at the end of warm-up"
    )
    muon_learning_rate: float = Field(
        1e-2,
        gt=0,
        le=10,
        description="the highest learning rate of the matrices that Muon moves, on the scale of AdamW's",
    )
    muon_momentum: float = Field(0.9, ge=0, lt=1, description="Muon's momentum")
    muon_weight_decay: float | None = Field(
        None, ge=0, le=10, description="the decay of the matrices that Muon moves; none: weight_decay"
    )
    warmup: float = Field(
        0.1,
        ge=0,
        description="updates of warm-up: a share of all below 1, a number from 1 on; a tenth, not the paper's 1 % "
        "(10,000 of a million), which in a short run would be a few dozen",
    )
    schedule: Shape = Field(
        "linear",
        description="after warm-up: linear (to 0 at the last update), linear_release (as BERT's release: on the "
        "line that falls from the first update on), cosine, constant, constant_then_down (in a line to 0 over "
        "the last `down`), one_cycle (up and down along cosines), step (times `drop` after each share in "
        "`drops_at`), inverse_sqrt, or in fine-tuning plateau (times `drop` where evaluations get no better)",
    )
    down: float = Field(
        0.4, gt=0, le=1, description="share of the updates over which constant_then_down falls to 0"
    )
    drop: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="what the schedules step and plateau multiply the rate by each time",
    )
    drops_at: Annotated[tuple[_Share, ...], BeforeValidator(_one_or_more)] = Field(
        (0.5, 0.75),
        min_length=1,
        description="shares of the updates after which the schedule step falls",
    )
    weight_decay: float = Field(
        0.01, ge=0, le=10, description="the optimiser's decay; biases and LayerNorm are exempt"
    )
    betas: tuple[_Beta, _Beta] = Field((0.9, 0.999), description="AdamW's two betas")
    epsilon: float = Field(1e-6, gt=0, description="AdamW's epsilon")
    bias_correction: bool = Field(
        True,
        description="whether AdamW corrects its first updates; BERT's release does not (false): its first step "
        "is 3.16 times the rate",
    )
    clip_norm: float = Field(1.0, gt=0, description="the largest norm of all gradients together")
    log_every: int = Field(10, ge=1, description="updates between two lines of log.jsonl")
    evaluate_every: int | None = Field(
        None, ge=1, description="updates between two evaluations; none: at the end"
    )
    checkpoint_every: int = Field(
        500, ge=1, description="updates between two checkpoints", json_schema_extra=MAY_CHANGE
    )
    keep_checkpoints: int = Field(
        2, ge=1, description="how many checkpoints stay", json_schema_extra=MAY_CHANGE
    )
    seed: int = Field(0, ge=0, lt=2**63, description="the seed of everything random")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="of products: fp32, bf16, or auto, which measures in which an update is faster here",
    )
    kernels: Literal["auto", "torch", "numba", "flash", "triton"] = Field(
        "auto",
        description="what computes between products. On a processor: torch, or numba, which is compiled and "
        "faster (the extra fast); auto: numba where it is installed and the model is at least 128 wide. On a GPU "
        "in bf16: torch, flash (flash attention of sequences of any length), or triton (layers as a whole, by "
        "programs of our own); auto: triton in runs of 500 updates and more, flash elsewhere",
        json_schema_extra=MAY_CHANGE,
    )
    cuda_graphs: bool = Field(
        True,
        description="on a GPU, by kernels triton and where a batch is an update: record each "
        "update's passes as a CUDA graph and replay it, so that the host does not keep the GPU waiting; batches "
        "are filled up to few shapes",
        json_schema_extra=MAY_CHANGE,
    )
    deterministic: bool = Field(
        False,
        description="on a GPU: compute by torch's deterministic algorithms alone, more slowly, so that a resumed "
        "run equals the one that was never stopped to the last bit, as on a processor it always does",
        json_schema_extra=MAY_CHANGE,
    )
    device: str = Field(
        "auto", description="where to compute: cpu, cuda, cuda:1; auto: a GPU if there is one"
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="threads of computation; none: OMP_NUM_THREADS, or the number that is measured to be fastest, "
        "also while the run goes",
        json_schema_extra=MAY_CHANGE,
    )
    workers: int = Field(
        1,
        ge=0,
        description="threads that build batches ahead; 0 builds them in the loop",
        json_schema_extra=MAY_CHANGE,
    )
    shard: bool = Field(
        False,
        description="each of several processes keeps but a part of weights, gradients and the optimiser's state, "
        "for training that does not fit into the memory of one; AdamW only",
        json_schema_extra=MAY_CHANGE,
    )
    tensorboard: bool = Field(
        True, description="write TensorBoard curves beside log.jsonl", json_schema_extra=MAY_CHANGE
    )

    @model_validator(mode="after")
    def _whole_matrices(self) -> TrainSettings:
        if self.shard and self.optimizer == "muon":
            raise ValueError(
                "train.shard cuts matrices, and Muon needs them whole: set train.optimizer=adamw"
            )
        return self

    @model_validator(mode="after")
    def _one_budget(self) -> TrainSettings:
        given = [
            name for name in ("max_steps", "max_tokens", "max_minutes") if getattr(self, name) is not None
        ]
        if len(given) > 1 and given != [
            "max_steps",
            "max_minutes",
        ]:  # these two are fine: whichever comes first
            raise ValueError(f"{' and '.join(given)} are budgets both: set all but one to none")
        return self
