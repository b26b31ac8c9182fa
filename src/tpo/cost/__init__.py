"""Guessing how fast candidates are without running them: features of programs, and a model over them."""
