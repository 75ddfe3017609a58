"""Attention weights of a model."""
