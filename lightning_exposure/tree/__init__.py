"""The tree of all secrets of a format: its nodes, what its edges cost, and reading along given paths."""

from lightning_exposure.tree.secret_tree import Children, Nodes, SecretTree

__all__ = ["Children", "Nodes", "SecretTree"]
