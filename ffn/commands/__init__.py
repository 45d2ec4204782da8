"""One module for each subcommand: its arguments, and the call of its stage."""
