"""Causal language models of Hugging Face: the prompt is read once, and its keys and values are shared by all rows."""
