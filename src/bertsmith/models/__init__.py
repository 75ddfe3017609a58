"""Neural network modules of the encoder and its heads, over packed sequences."""
