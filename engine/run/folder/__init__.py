"""Access to the files of a run folder that never leaves the folder."""
