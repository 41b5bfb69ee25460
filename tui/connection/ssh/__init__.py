"""Connections to runs on remote hosts through the user's ssh client."""
