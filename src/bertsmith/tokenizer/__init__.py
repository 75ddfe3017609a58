"""Text to ids, segments, and offsets, for WordPiece, byte-level BPE, and Unigram; tokenizer files."""
