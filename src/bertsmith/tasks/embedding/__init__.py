"""Vectors of texts that match: `embed`."""
