"""One training step of bertsmith on given batches, to be timed or compared with the reference's."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import Objective
from bertsmith.training.data_loader import START, Batch, Update
from bertsmith.training.distributed import SINGLE_RANK, create_strategy
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import DeferredFiniteCheck, TrainModule, train_step


class OurTrainer:
    """Encoder and objective with the optimizer, kernels, and CUDA graphs that a run with these settings has."""

    def __init__(
        self, encoder: Encoder, objective: Objective, settings: TrainSettings, device: str = "cpu"
    ) -> None:
        precision = "bf16" if settings.precision == "bf16" else "fp32"
        context = ComputeContext.create(device, precision, settings.seed, for_training=True)
        context = context.with_kernels(settings, encoder.config.hidden_size, None)
        if context.is_cpu:
            context = replace(context, generator=encoder.generator)
        self.context, self.settings = context, settings
        self.context.prepare_modules(encoder, objective)
        self.finite_check = DeferredFiniteCheck()
        self.trained = TrainModule(encoder, objective).train()
        self.strategy = create_strategy(self.trained, context, settings, SINGLE_RANK)
        self.step = 0

    def train_step(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """Make one training step. Return the losses by name, as `train_step` does."""
        self.step += 1
        objective = self.trained.objective
        assert isinstance(objective, Objective)
        update = Update(objective.counts(batch), batch.tokens, batch.epoch, (batch,), START)
        return train_step(self.strategy, update, learning_rate, self.step, self.finite_check)
