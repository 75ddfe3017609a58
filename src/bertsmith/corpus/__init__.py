"""A corpus on disk: encode documents once into memory-mapped token shards, and drop duplicates on request."""
