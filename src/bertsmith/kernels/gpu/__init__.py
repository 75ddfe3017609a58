"""What a GPU computes between products: flash attention by torch, and programs of our own that Triton compiles."""
