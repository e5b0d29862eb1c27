"""What the benchmarks share: command line, rows and tables, data, networks, steps, processes."""
