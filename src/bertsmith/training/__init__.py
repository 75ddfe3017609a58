"""Training: the trainer, optimizers, learning rate schedules, checkpoints, and metrics."""
