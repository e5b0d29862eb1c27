"""Bayesian model reduction for JAX and NumPyro."""

import lazy_loader

__version__ = "0.1.0"

# What there is stands in `__init__.pyi`, for type checkers and readers alike.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
