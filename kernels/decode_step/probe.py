"""Looks into a step without changing it: discrete choices and intermediate results, recorded or played back.

Two stages differ by rounding, and a rounding can tip a top-k between two near equals. To compare what they
compute, the choices of the baseline are played back to the other; how often it would have chosen otherwise is
reported beside.
"""

import torch


class Probe:
    """The probe of a step that nobody watches."""

    def choose(self, name: str, picked: torch.Tensor) -> torch.Tensor:
        """`picked` int `[B, k]`, or what is played back instead."""
        return picked

    def see(self, name: str, value: torch.Tensor) -> None:
        """An intermediate result goes by."""


class Recorder(Probe):
    """Keeps every choice and every result, in order."""

    def __init__(self):
        self.choices: list[torch.Tensor] = []
        self.seen: list[tuple[str, torch.Tensor]] = []

    def choose(self, name, picked):
        self.choices.append(picked.clone())
        return picked

    def see(self, name, value):
        self.seen.append((name, value.clone()))


class Playback(Probe):
    """Plays a recording's choices back; keeps the agreement of each with the step's own, and the results."""

    def __init__(self, choices):
        self._choices = list(choices)
        self.agreement: list[tuple[str, float]] = []
        self.seen: list[tuple[str, torch.Tensor]] = []

    def choose(self, name, picked):
        wanted = self._choices.pop(0)
        self.agreement.append((name, agreement(picked, wanted)))
        return wanted

    def see(self, name, value):
        self.seen.append((name, value.clone()))


def agreement(a: torch.Tensor, b: torch.Tensor) -> float:
    """The share of the rows' choices that both made; -1 is no choice, and its order is free."""
    hits = total = 0
    for left, right in zip(a.tolist(), b.tolist(), strict=True):
        one, other = set(left) - {-1}, set(right) - {-1}
        hits += len(one & other)
        total += max(len(one), len(other))
    return hits / total if total else 1.0
