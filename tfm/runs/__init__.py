"""Runs: trained, read back, started from another."""
