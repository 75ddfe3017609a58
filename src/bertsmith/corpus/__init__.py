"""A corpus on disk: documents encoded once into memory-mapped token shards, without repeats if asked."""
