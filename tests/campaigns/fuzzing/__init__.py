"""The standing campaign: mutated inputs over every reader, and commands killed at random moments."""


class WrongAnswerError(Exception):
    """Two ways to the same answer differ, or what was read is not what is written again."""
