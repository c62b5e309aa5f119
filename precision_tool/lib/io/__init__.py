"""Files by their paths, wherever they lie: opened, listed, checked and written in one way."""
