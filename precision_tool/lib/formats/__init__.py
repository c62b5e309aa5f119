"""One module per file format, the tables of types and layouts, and how stored bytes become numbers."""
