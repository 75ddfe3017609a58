"""One training step of bertsmith on given batches, to be timed or compared with the reference's."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.kernels.backend_selection import select_gpu_backend, select_training_backend
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import Objective
from bertsmith.training.cuda_graphs import Recorded, pays
from bertsmith.training.data_loader import Batch, Position, Update
from bertsmith.training.optim.optimizer import optimizer_of
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import Checks, Passes, Trained, update


class OurTrainer:
    """Encoder and objective with the optimizer, kernels, and CUDA graphs that a run with these settings has."""

    def __init__(
        self, encoder: Encoder, objective: Objective, settings: TrainSettings, device: str = "cpu"
    ) -> None:
        precision = "bf16" if settings.precision == "bf16" else "fp32"
        context = ComputeContext.create(device, precision, settings.seed, for_training=True)
        if context.is_cpu:
            kernels = select_training_backend(settings.kernels, encoder.config.hidden_size)
            self.context = replace(context, generator=encoder.generator, kernels=kernels)
        else:
            kernels = select_gpu_backend(settings.kernels, context.device, is_long=True)
            self.context = replace(context, kernels=kernels)
        self.context.prepare_modules(encoder, objective)
        self.checks = Checks()
        self.trained = Trained(encoder, objective).train()
        uses_graphs = pays(self.trained, self.context, settings, {})
        self.passes = Recorded(self.trained) if uses_graphs else Passes(self.trained)
        self.optimizer = optimizer_of(self.trained, settings)
        self.settings, self.step = settings, 0

    def update(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """Make one training step. Return the losses by name, as `train_step.update` does."""
        self.step += 1
        objective = self.trained.objective
        assert isinstance(objective, Objective)
        work = Update(objective.counts(batch), batch.tokens, batch.epoch, (batch,), Position())
        return update(
            *(self.trained, self.optimizer, work, learning_rate, self.settings, self.context, self.step),
            *(self.passes, self.checks),
        )
