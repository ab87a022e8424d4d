"""The subcommands of `lightning-exposure`: one file each, whose docstring begins with what it does."""
