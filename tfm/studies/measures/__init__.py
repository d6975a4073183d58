"""What a study asks of a trained run: one file each, named by a spec."""
