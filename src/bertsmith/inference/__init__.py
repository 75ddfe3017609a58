"""Load a trained model, and predict, evaluate, fill masks, score, embed, and search."""
