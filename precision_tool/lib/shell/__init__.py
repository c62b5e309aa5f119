"""The commands: parsers and what they do. The interactive prompt will stand beside them."""
