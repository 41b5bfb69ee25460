"""Sessions that bring a run's events to the app and carry its commands back."""
