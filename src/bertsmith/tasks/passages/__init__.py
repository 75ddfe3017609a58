"""Answers in passages: `answer`."""
