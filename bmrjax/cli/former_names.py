"""Options that had other names before 0.2, where Python and the command line differed."""

from collections.abc import Sequence
from itertools import pairwise

_OPTIONS = {
    "sparsify": {
        "--epochs": "--num-epochs",
        "--samples": "--num-samples",
        "--reduced-prior": "--criterion",
        "--rule": "--criterion",
        "--kl-warmup": "--kl-warmup-epochs",
    },
    "predict": {"--samples": "--num-samples"},
}
_VALUES = {
    ("--method", "noise"): "with-noise",
    ("--net", "mixer"): "mlp-mixer",
    ("--net", "mlp-nnx"): "nnx-mlp",
    ("--net", "vit-nnx"): "nnx-vit",
    ("--prior", "horseshoe"): "regularized-horseshoe",
    ("--prior", "spike-slab"): "spike-and-slab",
    ("--criterion", "spike-slab"): "spike-and-slab",
    ("--criterion", "horseshoe"): "regularized-horseshoe",
    ("--criterion", "bmrs-u"): "bmrs-uniform",
    ("--criterion", "bmrs-n"): "bmrs-normal",
    ("--criterion", "snr"): "signal-to-noise",
    ("--schedule", "converged"): "when-converged",
}


def former_name(arguments: Sequence[str]) -> str | None:
    """Return what to write in place of an option or a value that had another name, as a sentence, or None.

    Example:
        >>> former_name(["sparsify", "--epochs", "3"])
        '--epochs is called --num-epochs, as in Python.'
        >>> former_name(["sparsify", "--method=noise"])
        '--method noise is called --method with-noise, as in Python.'
        >>> former_name(["sparsify", "--num-epochs", "3"]) is None
        True
    """
    if not arguments:
        return None
    options = _OPTIONS.get(arguments[0], {})
    words = [part for word in arguments[1:] for part in _parts(word)]
    for word, after in pairwise([*words, ""]):
        if word in options:
            return f"{word} is called {options[word]}, as in Python."
        if (word, after) in _VALUES:
            return f"{word} {after} is called {word} {_VALUES[word, after]}, as in Python."
    return None


def in_names_of_today(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command of an earlier version, with the names that options have now.

    Example:
        >>> in_names_of_today(["sparsify", "--epochs", "3", "--method", "noise"])
        ['sparsify', '--num-epochs', '3', '--method', 'with-noise']
    """
    options = _OPTIONS.get(arguments[0], {}) if arguments else {}
    found: list[str] = []
    for word in [part for argument in arguments for part in _parts(argument)]:
        before = found[-1] if found else ""
        found.append(options.get(word, _VALUES.get((before, word), word)))
    return found


def _parts(word: str) -> list[str]:
    """Return an option and its value, of ``--option=value``; options may be written with underscores."""
    if not word.startswith("--"):
        return [word]
    name, equals, value = word.partition("=")
    return [name.replace("_", "-"), *([value] if equals else [])]
