"""The `fttui` command, one module per group of subcommands."""
