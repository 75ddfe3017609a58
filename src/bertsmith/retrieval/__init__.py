"""A vector index on disk with exact and approximate nearest-neighbor search; independent of any model."""
