"""Token shards → the batches of an epoch: which text makes each instance, what is masked, how it is packed."""
