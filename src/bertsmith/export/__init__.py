"""Models for other people and other tools: the model card, and the upload to a hub."""
