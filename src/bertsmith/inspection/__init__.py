"""Inspection of corpora, tokenizers, training instances, and folders, and estimates of training time."""
