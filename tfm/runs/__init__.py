"""Runs: training, loading, starting from another run."""
