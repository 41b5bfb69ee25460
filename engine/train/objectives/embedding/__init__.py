"""The model of a run as an embedding model, and metrics of it by functions of the user."""
