"""Everything a person sees: terminal, JSON, HTML report."""
