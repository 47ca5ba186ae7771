"""Which of several engines or workers an attempt goes to; it stays there, so that its cache does."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


@dataclass
class Routes(Generic[Name]):
    """Attempts by the place that plays them: a new one goes to the place with the fewest, the first of equals."""

    places: list[Name]
    loads: dict[Name, int] = field(default_factory=dict, init=False)
    """Attempts at each place."""
    _at: dict[str, Name] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.places = list(self.places)
        self.loads = dict.fromkeys(self.places, 0)

    def send(self, attempt: str) -> Name:
        """Choose a place for an attempt.

        Raises:
            LookupError: there is no place.
        """
        if not self.places:
            raise LookupError("there is no place left that could play an attempt")
        place = min(self.places, key=self.loads.__getitem__)
        self._at[attempt] = place
        self.loads[place] += 1
        return place

    def done(self, attempt: str) -> None:
        """The attempt ended, or left its place."""
        if (place := self._at.pop(attempt, None)) is not None:
            self.loads[place] -= 1

    def lose(self, place: Name) -> list[str]:
        """A place is gone: the attempts that were there, which are to be sent anew."""
        if place not in self.loads:
            return []
        self.places.remove(place)
        del self.loads[place]
        lost = [attempt for attempt, where in self._at.items() if where == place]
        for attempt in lost:
            del self._at[attempt]
        return lost

    def add(self, place: Name) -> None:
        """A place is there (again)."""
        if place not in self.loads:
            self.places.append(place)
            self.loads[place] = 0
