"""Per-example gradients, layer by layer: their norms, and their clipped sum in one backward pass."""
