"""Bytes and arrays: the file layer, formats, data types, layouts, the compiled kernel."""
