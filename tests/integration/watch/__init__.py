"""Trainers of other libraries under watch."""
