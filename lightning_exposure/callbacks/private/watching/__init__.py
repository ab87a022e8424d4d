"""Looks at a private training run between and beside its steps, and refuses what is not private there."""
