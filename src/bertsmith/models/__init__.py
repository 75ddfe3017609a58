"""Tensors to tensors: encoder and heads over packed sequences. No file, no optimiser, no hub in here."""
