"""Studies of what is memorized, and when."""
