"""Sounds that are made up: tones of known pitch, and voices of known speakers."""

import numpy as np
from jaxtyping import Float, Int
from scipy.signal import lfilter

RATE = 16_000
FRAME = 1024
LOWEST, HIGHEST = 50.0, 1500.0
HARMONICS = (3, 12)
SNR = (0.0, 30.0)

# A mel spectrum: windows of 25 ms every 10 ms, filters of area one up to 8 kHz.
WINDOW, HOP, MELS = 400, 160, 40
LEVEL = 10 ** (-30 / 20)

# Formants of five vowels of a vocal tract of average length, in Hz, and their widths (Peterson and Barney,
# 1952, rounded).
VOWELS = np.array(
    [[730, 1090, 2440], [530, 1840, 2480], [270, 2290, 3010], [570, 840, 2410], [300, 870, 2240]]
)
UPPER = (3500.0, 4500.0)
WIDTHS = (80.0, 90.0, 120.0, 170.0, 250.0)


def tones(
    seed: int, count: int
) -> tuple[Float[np.ndarray, "count 1024"], Float[np.ndarray, " count"]]:
    """Return frames of harmonic tones in white noise, and the pitch of each in cents above 10 Hz.

    Fundamentals are log-uniform from 50 to 1,500 Hz. There are 3 to 12 harmonics of random phase, as far
    as they are below 8 kHz, whose amplitudes fall as a random power between 0.5 and 2 of their number, times
    log-normal factors. The signal-to-noise ratio is uniform from 0 to 30 dB. Each frame has mean zero and
    standard deviation one.
    """
    rng = np.random.default_rng(seed)
    frequency = np.exp(rng.uniform(np.log(LOWEST), np.log(HIGHEST), count))
    number = rng.integers(HARMONICS[0], HARMONICS[1] + 1, count)
    k = np.arange(1, HARMONICS[1] + 1)
    amplitude = k ** -rng.uniform(0.5, 2, (count, 1)) * rng.lognormal(0, 0.5, (count, len(k)))
    there = (k <= number[:, None]) & (k * frequency[:, None] < RATE / 2)
    phase = rng.uniform(0, 2 * np.pi, (count, len(k)))
    angle = 2 * np.pi * np.arange(FRAME) / RATE
    clean = np.zeros((count, FRAME))
    for j in range(len(k)):
        wave = np.sin(k[j] * frequency[:, None] * angle + phase[:, j, None])
        clean += (amplitude * there)[:, j, None] * wave
    noise = rng.standard_normal((count, FRAME)) * clean.std(1, keepdims=True)
    x = clean + noise * 10 ** (-rng.uniform(*SNR, (count, 1)) / 20)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    return x.astype(np.float32), (1200 * np.log2(frequency / 10)).astype(np.float32)


def voices(
    seed: int, speakers: int, windows: int, frames: int
) -> tuple[Float[np.ndarray, "rows frames 40"], Int[np.ndarray, " rows"]]:
    """Return mel spectra of voices, and the speaker of each: `windows` of each speaker.

    A speaker has a pitch, a length of the vocal tract, a tilt of the spectrum and a breathiness. In a window
    pulses and noise go through resonances at the formants of vowels that change every 60 to 250 ms. The
    level is -30 dB of full scale.
    """
    rng = np.random.default_rng(seed)
    length = WINDOW + (frames - 1) * HOP
    mels, who = [], []
    for one in range(speakers):
        pitch, tract = np.exp(rng.uniform(np.log(80), np.log(260))), rng.uniform(0.8, 1.2)
        tilt, breath = rng.uniform(0.85, 0.98), rng.uniform(0.01, 0.2)
        vowels = VOWELS * tract * rng.lognormal(0, 0.05, VOWELS.shape)
        for _ in range(windows):
            mels.append(mel(_spoken(rng, length, pitch, tilt, breath, tract, vowels)))
            who.append(one)
    return np.stack(mels), np.array(who)


def _spoken(
    rng: np.random.Generator,
    length: int,
    pitch: float,
    tilt: float,
    breath: float,
    tract: float,
    vowels: Float[np.ndarray, "5 3"],
) -> Float[np.ndarray, " length"]:
    """Return a wave of random vowels of one voice."""
    time = np.arange(length) / RATE
    melody = 1 + rng.uniform(0.02, 0.15) * np.sin(
        2 * np.pi * (rng.uniform(1, 4) * time + rng.random())
    )
    cycles = np.cumsum(pitch * melody / RATE) + rng.random()
    source = np.diff(np.floor(cycles), prepend=np.floor(cycles[0]))
    source = lfilter([1.0], [1.0, -tilt], source) + breath * rng.standard_normal(length)
    wave, state, start = np.zeros(length), [np.zeros(2) for _ in WIDTHS], 0
    while start < length:
        end = min(length, start + int(RATE * rng.uniform(0.06, 0.25)))
        part = source[start:end] * rng.uniform(0.3, 1)
        formants = (*vowels[rng.integers(len(vowels))], *(tract * f for f in UPPER))
        for i, (formant, width) in enumerate(zip(formants, WIDTHS, strict=True)):
            radius = np.exp(-np.pi * width / RATE)
            poles = [1.0, -2 * radius * np.cos(2 * np.pi * formant / RATE), radius**2]
            part, state[i] = lfilter([sum(poles)], poles, part, zi=state[i])
        wave[start:end], start = part, end
    wave = wave + 1e-3 * wave.std() * rng.standard_normal(length)
    return wave * LEVEL / np.sqrt(np.mean(wave**2))


def mel(wave: Float[np.ndarray, " samples"]) -> Float[np.ndarray, "frames 40"]:
    """Return the power of mel filters, not its logarithm, in frames that lie within the wave."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    return (power @ filters().T).astype(np.float32)


def filters() -> Float[np.ndarray, "40 201"]:
    """Return triangular filters whose centres are linear in Hz to 1 kHz and logarithmic above, of area one.

    Example:
        >>> found = filters()
        >>> found.shape, bool((found >= 0).all())
        ((40, 201), True)
    """
    # 15 mels to 1 kHz; above, 27 for a factor of 6.4 in frequency.
    slope = np.log(6.4) / 27
    top = 15 + np.log(RATE / 2 / 1000) / slope
    mels = np.linspace(0, top, MELS + 2)
    edges = np.where(mels < 15, 200 * mels / 3, 1000 * np.exp(slope * (mels - 15)))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    hz = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    up, down = (hz - low) / (centre - low), (high - hz) / (high - centre)
    return np.maximum(0, np.minimum(up, down)) * 2 / (high - low)
