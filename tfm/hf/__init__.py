"""Published models: read, written, run."""
