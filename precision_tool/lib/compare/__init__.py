"""The comparison of whole runs: from their folders to a table of rows."""
