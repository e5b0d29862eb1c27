"""Benchmarks: `papers` (published figures), `costs` (time, memory, bytes), `trust` (defaults) and `trained`.

Run each from the root of the repository as a module, such as ``python -m benchmarks.papers.markovic2024``.
Rows are kept in ``benchmarks/results``; those that are there are not run again.
"""
