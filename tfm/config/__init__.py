"""Run configs: fields, files, resolution, validation, and the objects that they describe."""
