"""Workflows of several runs: restarts, folds, grids, ablation, adaptation, distillation, and GLUE."""
