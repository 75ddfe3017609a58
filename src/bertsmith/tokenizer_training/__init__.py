"""Tokenizer training: corpus files to word counts to a vocabulary, and new words for a vocabulary."""
