"""Models before BERT on the same data: word vectors and static vectors."""
