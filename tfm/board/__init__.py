"""One local page of the runs and studies of a folder."""
