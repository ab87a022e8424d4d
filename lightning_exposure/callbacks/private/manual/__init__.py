"""Modules that make their steps themselves: one of their optimizers is private, and the others see no data."""
