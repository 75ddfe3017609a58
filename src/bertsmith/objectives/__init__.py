"""Self-supervised pre-training objectives."""
