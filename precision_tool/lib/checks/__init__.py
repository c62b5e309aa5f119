"""Checks: what the rows of a comparison, graphs and dumped values tell. They print nothing and write no files."""
