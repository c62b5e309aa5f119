"""A data folder as it is read and kept: its runs, graphs, benchmark and results; what it has by default."""
