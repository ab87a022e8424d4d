"""Studies of what keeps models from memorizing, and what does not."""
