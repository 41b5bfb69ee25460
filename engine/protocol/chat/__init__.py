"""Chats with the base model and the model in training: how they are typed, and their events."""
