"""The subcommand `mcp`: tools with which programs look at runs and act on them within limits."""
