"""Scores that no kept library offers as the field's scripts compute them."""
