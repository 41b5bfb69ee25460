"""The process of `fttui bridge`, which ssh starts on the remote host."""

from __future__ import annotations

import os
import resource
import signal

from .server import BridgeOptions, BridgeServer
from .stream import FrameStream

_ADDRESS_SPACE_BYTES = 4 * 1024**3


def serve(options: BridgeOptions) -> int:
    """Serve a viewer over this process's standard input and output; return the exit code.

    What libraries print goes to standard error from then on.
    """
    os.umask(0o077)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
    if ceiling == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, ceiling))
    # Output that a library prints must not mix with the frames.
    sending = os.dup(1)
    os.dup2(2, 1)
    return BridgeServer(FrameStream(0, sending), options).run()
