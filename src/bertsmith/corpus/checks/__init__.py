"""Quality checks of a corpus and of tokenizers on it, before hours are spent on training."""
