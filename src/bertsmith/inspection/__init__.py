"""What a corpus, tokenizers, instances and folders are like, and what training on them will cost."""
