"""What a run would need and reach on devices that need not be here: compiled for them, never run."""
