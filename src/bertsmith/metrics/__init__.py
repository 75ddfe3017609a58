"""Scores as the official evaluation scripts compute them, where no maintained library offers them."""
