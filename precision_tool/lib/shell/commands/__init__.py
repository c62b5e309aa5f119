"""One module per family of commands. A command is a parser and a function of session, arguments and console."""
