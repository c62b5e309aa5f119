"""One module per file format: readers, writers, and the registry that tells which a file is."""
