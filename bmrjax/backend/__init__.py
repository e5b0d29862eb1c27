"""Workarounds for compilers and devices, each with the figure that justifies it."""
