"""Reports of studies: ranking, tables, sentences, plots and pages."""
