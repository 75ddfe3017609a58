"""Attributions and attention of a model."""
