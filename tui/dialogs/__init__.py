"""The text of dialogs: parse what was typed into a command and preview its effect."""
