"""What to do about memorization: take secrets out of the data, or make the model forget them."""
