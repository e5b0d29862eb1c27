"""Runs: a fit that reduces its program while it trains, and the result of it."""
