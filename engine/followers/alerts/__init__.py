"""Messages to people about a run: what is worth a message, when it is sent, and by what."""
