"""The compiled kernel, and its loader."""
