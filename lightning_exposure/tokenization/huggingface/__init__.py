"""Tokenizers of Hugging Face: what their file says, and how they cut and spell a text."""
