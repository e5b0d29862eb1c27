"""NumPyro programs as users write them: a zoo for tests and the benchmark.

None was written for this package. They come from NumPyro's examples, tutorials and docstrings, or follow
textbooks; data are small, simulated with a fixed seed or typed in.
"""

from . import arguments, hierarchies, latent, mechanics, networks, regressions, time_series
from .program import Program

PROGRAMS: dict[str, Program] = {
    program.name: program
    for theme in (regressions, arguments, hierarchies, time_series, latent, mechanics, networks)
    for program in theme.PROGRAMS
}

__all__ = ["PROGRAMS", "Program"]
