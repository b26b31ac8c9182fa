"""Kernels for machines that this one is not: built here, run in an emulator or on a board, and checked."""
