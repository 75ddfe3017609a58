"""From files to packed sequences: token shards on disk, an epoch's plan, masks, batches."""
