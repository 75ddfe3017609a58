"""Serve models over HTTP: an engine that batches requests, and the routes on top of it."""
