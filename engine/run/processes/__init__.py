"""Processes of a run: who they are, whether they are alive, and the marks that they leave."""
