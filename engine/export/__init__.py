"""A checkpoint as a folder that other programs load."""
