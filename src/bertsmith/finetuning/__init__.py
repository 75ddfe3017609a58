"""The fine-tuning workflow."""
