"""Checks: they turn rows and graphs into findings. They read no files and print nothing."""
