"""Kernels for CPUs, compiled by Numba."""
