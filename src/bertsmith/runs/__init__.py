"""Run folders, and the compute setup and settings of a run."""
