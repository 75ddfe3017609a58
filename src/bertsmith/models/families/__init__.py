"""One file a family, one screen each: only what differs from BERT. Each has a line in `family.FAMILIES`."""
