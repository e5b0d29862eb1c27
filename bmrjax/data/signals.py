"""Periodic signals, cut into windows to predict the next sample from."""

from collections.abc import Callable

import numpy as np

# One period of each signal, from the phase in [0, 1) to [-1, 1].
SIGNALS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sine": lambda phase: np.sin(2 * np.pi * phase),
    "sawtooth": lambda phase: 2 * phase - 1,
    "square": lambda phase: np.where(phase < 0.5, 1.0, -1.0),
}


def periodic(
    kind: str,
    *,
    length: int = 1000,
    period: float = 37.7,
    noise: float = 0.05,
    window: int = 8,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of a noisy periodic signal, and the sample after each.

    Args:
        kind: ``"sine"``, ``"sawtooth"`` or ``"square"``.
        length: Samples of the signal.
        period: Samples a period; not a whole number, so that no two periods are alike.
        noise: Standard deviation of what is added to a signal between -1 and 1.
        window: Samples a window.
        seed: Of the noise and the phase.

    Returns:
        Windows, shape (length - window, window, 1), and the next samples, shape (length - window,), in the
        order of time.

    Raises:
        ValueError: For another kind, or a signal that is no longer than its window.

    Example:
        >>> from bmrjax.data.signals import periodic
        >>> x, y = periodic("square", length=100)
        >>> x.shape, y.shape
        ((92, 8, 1), (92,))
    """
    if kind not in SIGNALS:
        raise ValueError(f"periodic: kind must be one of {', '.join(SIGNALS)}, got {kind!r}.")
    if not 0 < window < length:
        raise ValueError(
            f"periodic: a window of {window} samples does not fit into a signal of {length}; it must be "
            "at least 1 and shorter than the signal."
        )
    rng = np.random.default_rng(seed)
    phase = (np.arange(length) / period + rng.uniform()) % 1.0
    signal = SIGNALS[kind](phase) + noise * rng.normal(size=length)
    windows = np.lib.stride_tricks.sliding_window_view(signal[:-1], window)
    return windows[:, :, None].astype(np.float32), signal[window:].astype(np.float32)
