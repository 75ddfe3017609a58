"""Folders that leave the house: models in the Hugging Face layout, read and written."""
