"""Export: writes a checkpoint as a folder that other programs load."""
