"""What a layer computes between its products: torch's operations, and compiled ones in their place."""
