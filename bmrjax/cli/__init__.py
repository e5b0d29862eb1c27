"""The command line. The only place that maps words to objects."""

import contextlib
import difflib
import gc
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import tyro

from bmrjax import __version__
from bmrjax.cli.check_options import check_options
from bmrjax.cli.config_file import config_path, read_config
from bmrjax.cli.fold_help import folded_help
from bmrjax.cli.former_names import former_name
from bmrjax.cli.inspect_options import InspectOptions
from bmrjax.cli.limited import run_limited
from bmrjax.cli.reduce_options import ReduceOptions
from bmrjax.cli.saved_options import (
    CheckOptions,
    CompactOptions,
    CompressOptions,
    ExportOptions,
    InfoOptions,
    PredictOptions,
    ReportOptions,
)
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.cli.waiting import waiting
from bmrjax.errors import one_line
from bmrjax.run.interrupt import EndedBySignal, end_by_exception, end_silently

# What a command takes, and the module of the function that runs it: help and refused options load none of
# these, nor JAX.
COMMANDS: dict[str, tuple[type, str]] = {
    "sparsify": (SparsifyOptions, "sparsify"),
    "inspect": (InspectOptions, "inspect"),
    "info": (InfoOptions, "saved"),
    "report": (ReportOptions, "html_report"),
    "predict": (PredictOptions, "saved"),
    "check": (CheckOptions, "check"),
    "compact": (CompactOptions, "saved"),
    "compress": (CompressOptions, "compress"),
    "export": (ExportOptions, "export"),
    "reduce": (ReduceOptions, "reduce"),
}

DESCRIPTION = """Bayesian model reduction for JAX and NumPyro.

bmrjax COMMAND --help explains a command, bmrjax --version prints the version, and \
bmrjax --tyro-print-completion bash (or zsh) prints completion for a shell."""


def script() -> None:
    """Run the command line in a process of its own."""
    # Tracing makes many objects that live. Looking at them again and again for garbage took about a tenth
    # of the time of a run on a small table, while it ran and when it ended.
    gc.set_threshold(50_000, 20, 50)
    try:
        # Not where the caller has said otherwise, as `nohup` does.
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            number = getattr(signal, name, None)
            theirs = (signal.SIG_DFL, signal.default_int_handler)
            if number is not None and signal.getsignal(number) in theirs:
                signal.signal(number, end_by_exception)
        main(limited=True)
        sys.stdout.flush()
    except (KeyboardInterrupt, EndedBySignal) as error:  # before the command, or after it
        _end(error, "stopped")
    except BrokenPipeError:  # into `head`, say, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    finally:
        # Nothing is lost from here on, and Python would have more to say of another Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()


def main(arguments: list[str] | None = None, *, limited: bool = False) -> None:
    """Run the command line; errors are one line on stderr and exit code 2.

    Args:
        arguments: By default those of the process.
        limited: Whether files that strangers may have made are run in a child process with limits. JAX must
            not have been loaded.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:
        print(f"bmrjax {__version__}")
        return
    command = _parsed(arguments)
    if limited and isinstance(command, PredictOptions) and command.directory.is_file():
        run_limited(
            lambda: _run(command),
            what=f"the network in {command.directory}",
            seconds=command.max_seconds,
            gigabytes=command.max_gigabytes,
        )
    else:
        _run(command)


def _parsed(arguments: list[str]) -> Any:
    """Return the options of the command that the words name; the process ends for others."""
    try:
        if (advice := former_name(arguments) or _meant(arguments)) is not None:
            raise ValueError(advice)
        if arguments[:1] == ["sparsify"] and (path := config_path(arguments)) is not None:
            missing: dict[str, Any] = {"data": tyro.MISSING, "out": tyro.MISSING}
            default = SparsifyOptions(**{**missing, **read_config(path)})
            return tyro.cli(
                SparsifyOptions, prog="bmrjax sparsify", args=arguments[1:], default=default
            )
        with folded_help(arguments):
            return tyro.extras.subcommand_cli_from_dict(
                {name: kind for name, (kind, _) in COMMANDS.items()},
                prog="bmrjax",
                description=DESCRIPTION,
                args=arguments,
            )
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError) as error:
        _refuse(error)


def _meant(arguments: list[str]) -> str | None:
    """Return which command was meant by a word that is nearly one, as a sentence, or None."""
    word = arguments[0] if arguments else ""
    if word in COMMANDS or word.startswith("-"):
        return None
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    return f"there is no command '{word}'. Did you mean bmrjax {near[0]}?" if near else None


def _refuse(error: Exception) -> NoReturn:
    """Say in one line what is wrong, and end with status 2."""
    if os.environ.get("BMRJAX_DEBUG"):
        raise error
    print(f"bmrjax: error: {one_line(str(error))}", file=sys.stderr)
    raise SystemExit(2) from None


def _run(command: Any) -> None:
    try:
        if isinstance(command, SparsifyOptions):
            check_options(command)
        name = next(name for name, (kind, _) in COMMANDS.items() if kind is type(command))
        # A command without the option has nothing else to show.
        with waiting("loading, then compiling", wanted=getattr(command, "progress", True)):
            module = importlib.import_module(f"bmrjax.cli.run_{COMMANDS[name][1]}")
            importlib.import_module("bmrjax.backend.compile_cache").keep_compiled()
        getattr(module, f"run_{name}")(command)
    except BrokenPipeError:
        raise  # the reader has read enough, which is no error
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        _refuse(error)
    except MemoryError:
        _refuse(MemoryError("there is not enough memory."))
    except (KeyboardInterrupt, EndedBySignal) as error:
        goes_on = isinstance(command, SparsifyOptions) and any(
            each.name.isdigit() for each in command.out.glob("checkpoints/*")
        )
        _end(error, "stopped; --resume goes on from the last checkpoint" if goes_on else "stopped")


def _end(error: BaseException, text: str) -> NoReturn:
    """Say in one line that a signal ended the command, and end as the signal would have."""
    by = f" by {error}" if isinstance(error, EndedBySignal) else ""
    end_silently()
    sys.stderr.write(f"bmrjax: {text.replace('stopped', f'stopped{by}', 1)}.\n")
    if isinstance(error, EndedBySignal):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        signal.signal(error.number, signal.SIG_DFL)
        signal.raise_signal(error.number)
    raise SystemExit(130) from None
