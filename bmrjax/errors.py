"""Errors that carry what a run had reached, and warnings that point at the caller's own line."""

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parent / "_")[:-1]


class FitWarning(UserWarning):
    """A serious finding about a fit; `Result.diagnose` lists those of `sparsify`.

    To silence it: ``warnings.filterwarnings("ignore", category=bmr.FitWarning)``.

    Example:
        Make a finding an error, as in a script that nobody watches:

        >>> import warnings
        >>> import bmrjax as bmr
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", bmr.FitWarning)
        ...     warnings.warn("the fit has not converged", bmr.FitWarning)
        Traceback (most recent call last):
            ...
        bmrjax.errors.FitWarning: the fit has not converged
    """


def one_line(text: str) -> str:
    r"""Return a text in one line, in which nothing steers a terminal.

    Example:
        >>> print(one_line("no class 'a\n  b\x1b[31m'"))
        no class 'a b\x1b[31m'
    """
    shown = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Emit a warning at the line outside of this package that led here."""
    frame, level, ours = sys._getframe(1), 2, 2
    while frame is not None:
        ours = level if frame.f_code.co_filename.startswith(_PACKAGE) else ours
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=ours + 1)


class DamagedFileError(ValueError):
    """A file of a saved run is damaged, cut short, or of another run; the message names it.

    Example:
        >>> import pathlib, tempfile
        >>> import bmrjax as bmr
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = bmr.Result({"w": [1.0]}, {}, {}, 10).save(folder / "run")
        >>> _ = (folder / "run" / "result.json").write_text("{")
        >>> bmr.load(folder / "run")
        Traceback (most recent call last):
            ...
        bmrjax.errors.DamagedFileError: ...result.json is damaged or cut short ...
    """


class NonFiniteError(FloatingPointError):
    """Too many steps in a row had a loss or a gradient that was not finite.

    Attributes:
        result: A `Result` with the last good state.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.factor("bad", jnp.log(-jnp.exp(w).sum()) + x.sum())
        >>> try:
        ...     bmr.sparsify(program, (jnp.ones(4),), key=jax.random.key(0), progress=False)
        ... except bmr.NonFiniteError as error:
        ...     print(str(error)[:63])
        100 steps in a row, up to epoch 1, had a loss or gradient that
    """

    def __init__(self, in_row: int, epoch: int, result: Any):
        super().__init__(
            f"{in_row} steps in a row, up to epoch {epoch}, had a loss or gradient that is not "
            "finite; they were skipped, and the last good state is in this error's `result`. Lower "
            "the learning rate, warm up the KL term (FitOptions(kl_warmup=...)), or check the program for "
            "logarithms and divisions of zero."
        )
        self.result = result


class EnsembleError(FloatingPointError):
    """Members of an ensemble diverged, while the others ran to their ends.

    Attributes:
        results: One `Result` a member; of those that diverged, the last good state.
        failures: Member to its `NonFiniteError`.

    Example:
        >>> import bmrjax as bmr
        >>> fine, diverged = bmr.Result({}, {}, {}, 10), bmr.Result({}, {}, {}, 10)
        >>> try:
        ...     raise bmr.EnsembleError([fine, diverged], {1: bmr.NonFiniteError(5, 3, diverged)})
        ... except bmr.EnsembleError as error:
        ...     usable = [r for i, r in enumerate(error.results) if i not in error.failures]
        >>> usable == [fine]
        True
    """

    def __init__(self, results: list[Any], failures: Mapping[int, NonFiniteError]):
        first = min(failures)
        super().__init__(
            f"{len(failures)} of {len(results)} members diverged, the first of them number {first}: "
            f"{failures[first]} The results of all members are in this error's `results`."
        )
        self.results: list[Any] = results
        self.failures = dict(failures)


class CallbackError(RuntimeError):
    """A callback raised; the epoch in progress was finished first.

    Attributes:
        result: A `Result` with the state that the fit had reached; of an `ensemble`, a list of them. If the
            fit was over when the callback raised, its final result.

    Example:
        A callback that stops a fit; the result so far is not lost.

        >>> import jax, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(y):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(w.sum(), 1), obs=y)
        >>> def stop(record):
        ...     if isinstance(record, bmr.callbacks.EpochEnd):
        ...         raise RuntimeError("enough")
        >>> try:
        ...     bmr.sparsify(program, (1.0,), key=jax.random.key(0), callbacks=[stop], progress=False)
        ... except bmr.CallbackError as error:
        ...     len(error.result.history)
        1
    """

    def __init__(self, callback: str, error: BaseException | None, result: Any, *, saved: bool):
        raised = "an exception" if error is None else repr(error)
        goes_on = (
            " Run it again with checkpoints=bmr.Checkpoints(directory, resume=True) to go on."
            if saved
            else ""
        )
        super().__init__(
            f"the callback {callback} raised {raised}; what the fit had reached is in this error's "
            f"`result`.{goes_on}"
        )
        self.result = result


class InterruptedFit(KeyboardInterrupt):
    """The fit was stopped by Ctrl-C, after the epoch that it was in.

    Attributes:
        result: A `Result` with the state that it had reached; of an `ensemble`, a list of them.
        signal: Number of the signal. With checkpoints, the epoch is finished on SIGTERM and SIGHUP too; then
            they end the process.

    Example:
        >>> import bmrjax as bmr
        >>> try:
        ...     raise bmr.InterruptedFit(3, bmr.Result({}, {}, {}, 10), saved=False)  # as Ctrl-C does
        ... except bmr.InterruptedFit as error:
        ...     result = error.result
        >>> result.num_data
        10
    """

    def __init__(self, epoch: int, result: Any, *, saved: bool, signal: int = 2):
        goes_on = (
            " Run it again with checkpoints=bmr.Checkpoints(directory, resume=True) to go on."
            if saved
            else ""
        )
        super().__init__(
            f"stopped after epoch {epoch}; what the fit had reached is in this error's `result`.{goes_on}"
        )
        self.result: Any = result
        self.signal: int = signal
