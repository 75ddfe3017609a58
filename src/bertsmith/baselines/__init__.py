"""Language models and word vectors that came before BERT, trained on the same corpora."""
