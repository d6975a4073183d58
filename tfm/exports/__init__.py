"""Formats in which a model leaves: one file each."""
