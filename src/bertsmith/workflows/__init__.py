"""One file a verb that spans rooms: pretrain, finetune, predict, quickstart."""
