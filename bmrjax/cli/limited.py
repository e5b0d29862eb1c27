"""A command in a child process with limits, for files that strangers may have made."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable

# What a library writes when it aborts is longer than a line.
_FATAL = {"SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"}
_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


def run_limited(run: Callable[[], None], *, what: str, seconds: int, gigabytes: float) -> None:
    """Run a command in a child, so that neither an abort nor a blow-up reaches this process.

    Must be called before JAX is loaded, whose threads do not survive a fork. Systems without ``fork`` run it
    in this process.

    Args:
        run: The command; it reports its own errors and raises SystemExit.
        what: It runs, for messages.
        seconds: Of processor time that it may take.
        gigabytes: Of memory that it may allocate.

    Raises:
        SystemExit: With the child's status, or with 2 after one line if it was killed.
    """
    if not hasattr(os, "fork"):
        run()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as messages:
        child = os.fork()
        if child == 0:
            _be_child(run, messages.fileno(), seconds, gigabytes)
        status = _waited(child)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            print(f"bmrjax: error: {_why(what, number, seconds, gigabytes)}", file=sys.stderr)
            raise SystemExit(128 + number if number in _ENDING else 2)
        messages.seek(0)
        sys.stderr.write(messages.read().decode(errors="replace"))
        sys.stderr.flush()
    code = os.WEXITSTATUS(status)
    if code:
        raise SystemExit(code)


def _be_child(run: Callable[[], None], messages: int, seconds: int, gigabytes: float) -> None:
    """Run the command under limits and end the process."""
    import resource

    code = 1
    # Ctrl-C reaches parent and child; the parent has the word.
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.dup2(messages, 2)
        most = int(gigabytes * 2**30)
        # Not addresses, of which JAX reserves far more than it uses.
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        run()
        sys.stdout.flush()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _waited(child: int) -> int:
    """Wait for a child, and pass on what should end it."""

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _ENDING}
    try:
        return os.waitpid(child, 0)[1]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _why(what: str, number: int, seconds: int, gigabytes: float) -> str:
    name = signal.Signals(number).name
    if name == "SIGXCPU":
        return (
            f"{what} took more than {seconds} s of processor time; if it is to be trusted, --max-seconds "
            "allows more."
        )
    if name in _FATAL or name == "SIGKILL":
        return (
            f"{what} ended its process ({name}): it needs more than {gigabytes:g} GB of memory, or asks for "
            "what cannot be computed. If it is to be trusted, --max-gigabytes allows more."
        )
    return f"{what} was stopped by {name}."
