"""Measures: what a study computes from a trained run; one file each, named by a spec."""
