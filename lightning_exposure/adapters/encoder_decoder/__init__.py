"""Encoder-decoders: the source is read once, the format is on the target side."""
