"""Models that are not neural networks of layers: n-gram language models, word vectors, static vectors."""
