"""Chats with the models of a run, as the journal tells them, and settings of the next prompt."""
