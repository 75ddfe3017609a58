"""Models before BERT on the same data: n-gram models, word vectors, and static vectors."""
