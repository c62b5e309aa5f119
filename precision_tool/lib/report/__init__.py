"""The report: one HTML file with the verdict, the map of the network, every op, tables and charts."""
