"""What the check and the sample of the data say to the app and the command line."""
