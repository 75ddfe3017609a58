"""Training instances: which text of a tokenized corpus forms each, which tokens are masked, and their batches."""
