"""Train a tokenizer's vocabulary on a corpus, and add words to an existing vocabulary."""
