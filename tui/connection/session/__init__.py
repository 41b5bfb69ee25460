"""The parts of a session of a live run that do not depend on the transport."""
