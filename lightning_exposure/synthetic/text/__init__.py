"""Texts that a model has generated: what they give away about the canaries of its training data."""
