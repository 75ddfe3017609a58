"""A finished model and text → answers: filled masks, predictions, scores, vectors. Nothing here trains."""
