"""Everything a person sees: renderables made from finished values. Nothing is computed here."""
