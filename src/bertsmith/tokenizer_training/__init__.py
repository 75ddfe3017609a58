"""Learning a tokenizer: corpus files → counted words → a vocabulary, and words added to one."""
