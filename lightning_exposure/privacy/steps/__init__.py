"""The steps of a private training: Poisson batches, noise, accounting, and the proof that all of it took place."""
