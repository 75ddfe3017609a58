"""Operations of encoders, losses, and optimizers: a reference in PyTorch and faster backends."""
