"""Encode texts with WordPiece, byte-level BPE, and Unigram tokenizers; read and write their files."""
