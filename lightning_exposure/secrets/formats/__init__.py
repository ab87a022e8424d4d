"""Formats: finite sets of texts, numbered, with an exact acceptor."""
