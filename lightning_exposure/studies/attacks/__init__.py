"""Studies of how secrets are found, and how well exposure can be estimated."""
