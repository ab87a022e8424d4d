"""The canonical spelling of a text: the one a tokenizer itself would choose, decided token by token."""
