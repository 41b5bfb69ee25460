"""Incidents: the alarms of one cause, what was done about them, and how they ended."""
