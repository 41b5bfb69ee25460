"""What a shell and `man` know of the command line: completion and the manual page."""
