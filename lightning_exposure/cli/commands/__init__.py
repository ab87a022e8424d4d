"""The subcommands of `lightning-exposure`: one file each."""
