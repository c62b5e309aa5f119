"""The standing campaign: mutated inputs over every reader, and commands killed at random moments."""
