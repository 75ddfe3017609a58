"""Fine-tuning tasks: one folder each, from a labeled row to a score."""
