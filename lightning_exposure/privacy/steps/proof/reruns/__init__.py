"""Running a training step again, on other batches and without a trace, to see what single examples do in it."""
