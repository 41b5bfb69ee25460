"""What a release must be: built, tried in a clean environment, and named consistently."""
