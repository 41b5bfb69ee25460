"""Pages of the documentation about keys and commands, generated from the tables of the app."""
