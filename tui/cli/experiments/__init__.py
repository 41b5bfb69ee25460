"""Subcommands that try settings on a run, repeat runs and compare them."""
