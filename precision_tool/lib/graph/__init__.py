"""The graph that ran: its choice, cache, wiring and the ops in it."""
