"""GPU kernels: flash attention by PyTorch, and Triton kernels for the operations between matrix products."""
