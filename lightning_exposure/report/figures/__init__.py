"""The figures: exposure over training, against epsilon, and those of the paper."""
