"""Text → ids, segments and offsets, for every kind of vocabulary, and the files that a tokenizer is kept in."""
