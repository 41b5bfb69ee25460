"""Safe access to the files of a run folder: nothing outside the folder is read or written."""
