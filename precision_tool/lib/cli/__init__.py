"""The commands, with their parsers, and the interactive prompt."""
