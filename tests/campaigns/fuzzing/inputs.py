"""The inputs of the campaign: each is told by its reader, the seed and its number, and made again from these."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from fuzzing.mutations import mutated, splice
from fuzzing.readers import Reader, documents_of
from fuzzing.structures import mutated_json


class Inputs:
    """Makes the inputs of one reader."""

    def __init__(self, name: str, reader: Reader, seed: int) -> None:
        self._name, self._seed, self._reader = name, seed, reader
        with tempfile.TemporaryDirectory() as folder:
            self.sound = reader.files(Path(folder))
            self._messages = reader.messages(Path(folder)) if reader.messages is not None else []
        self._documents = documents_of(self.sound) if reader.documents else []

    def make(self, number: int) -> bytes:
        """Input `number`; the first ones are the sound files themselves."""
        if number < len(self.sound):
            return self.sound[number]
        rng = Random(f"{self._name}:{self._seed}:{number}")
        kind = rng.random()
        reader = self._reader
        if self._documents and kind < 0.7:
            made = mutated_json(rng, rng.choice(self._documents), self._documents)
        elif self._messages and kind < 0.6:
            made = rng.choice(self._messages).mutated(rng)
        elif reader.make is not None and kind < 0.6:
            made = reader.make(rng)
        else:
            return mutated(rng, rng.choice(self.sound), reader.mutations, self.sound)
        if kind < 0.05:
            made = mutated(rng, made, reader.mutations, ())
        elif kind < 0.06:
            made = splice(rng, made, rng.choice(self.sound))
        return made
