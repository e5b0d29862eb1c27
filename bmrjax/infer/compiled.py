"""Compiled programs, kept between runs; see `bmrjax.backend.shared_programs`."""

from bmrjax.backend.shared_programs import compiled

__all__ = ["compiled"]
