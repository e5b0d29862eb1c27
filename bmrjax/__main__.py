"""The command line: ``bmrjax``, or ``python -m bmrjax`` where its script is not on the path."""

import signal
import sys
from pathlib import Path

# Libraries take a second to load. Until `script` has a line for Ctrl-C, it ends the process as a process
# without handlers is ended, and not by a traceback from within a library.
_is_command = __name__ == "__main__" or Path(sys.argv[0]).stem == "bmrjax"
if _is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from bmrjax.cli import script  # noqa: E402

if __name__ == "__main__":
    script()
