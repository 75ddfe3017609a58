"""Inspection of corpora, tokenizers, training instances, and models, and estimates of training time."""
