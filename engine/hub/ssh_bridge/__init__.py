"""The bridge that ssh starts on a remote host: serves a run to one viewer over a byte stream."""
