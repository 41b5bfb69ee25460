"""The data check of a run: the process that reads the data, and the text about the result."""
