"""Chats with the models of a run, according to the journal, and settings of the next prompt."""
