"""Reports of studies: ranking, page and pictures."""
