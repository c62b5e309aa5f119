"""What was dumped: file-name grammars, the read-only walk over dump trees, and the choice of the graph."""
