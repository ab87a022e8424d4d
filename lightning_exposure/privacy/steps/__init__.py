"""The steps of a private training run: Poisson batches, noise, accounting, and the proof that all of it took place."""
