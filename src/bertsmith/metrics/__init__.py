"""Metrics that equal those of the official evaluation scripts and that no maintained library offers."""
