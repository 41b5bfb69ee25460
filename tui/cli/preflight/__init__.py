"""What is found out and checked before a run starts: its start adapter, and its memory."""
