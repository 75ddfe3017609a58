"""Our update on batches that are handed to it, to be timed or compared with the reference's."""

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
    """Encoder and objective with the settings' optimiser, where the reference computes as well."""

    def __init__(
        self, encoder: Encoder, objective: Objective, settings: TrainSettings, device: str = "cpu"
    ) -> None:
        precision = "bf16" if settings.precision == "bf16" else "fp32"
        place = ComputeContext.create(device, precision, settings.seed, for_training=True)
        if place.is_cpu:
            kernels = select_training_backend(settings.kernels, encoder.config.hidden_size)
            self.place = replace(place, generator=encoder.generator, kernels=kernels)
        else:
            self.place = replace(
                place, kernels=select_gpu_backend(settings.kernels, place.device, is_long=True)
            )
        self.place.prepare_modules(encoder, objective)
        self.checks = Checks()
        self.trained = Trained(encoder, objective).train()
        records = pays(self.trained, self.place, settings, {})
        self.passes = Recorded(self.trained) if records else Passes(self.trained)
        self.optimizer = optimizer_of(self.trained, settings)
        self.settings, self.step = settings, 0

    def update(self, batch: Batch, rate: float) -> dict[str, Tensor]:
        """One step at this rate; what `step.update` returns."""
        self.step += 1
        objective = self.trained.objective
        assert isinstance(objective, Objective)
        work = Update(objective.counts(batch), batch.tokens, batch.epoch, (batch,), Position())
        return update(
            *(self.trained, self.optimizer, work, rate, self.settings, self.place, self.step),
            *(self.passes, self.checks),
        )
