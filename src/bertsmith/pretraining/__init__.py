"""The pre-training workflow."""
