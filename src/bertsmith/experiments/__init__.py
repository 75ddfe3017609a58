"""Workflows of several runs."""
