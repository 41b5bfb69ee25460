"""Pages of the documentation about events, protocol and run folder, generated from the code."""
