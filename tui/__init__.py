"""The fttui terminal app and command line; never loads torch."""
