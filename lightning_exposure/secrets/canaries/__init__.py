"""Canaries: made-up secrets, how often each is inserted, and the file that keeps them."""
