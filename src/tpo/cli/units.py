"""Times and modelled cycles as people read them; one is never shown as the other."""

from __future__ import annotations

from dataclasses import dataclass

from tpo.records.record import CYCLES, SECONDS


@dataclass(frozen=True)
class Unit:
    """What measurements are shown in: `label`, of which `scale` are one of what is stored."""

    label: str
    scale: float

    def __call__(self, value: float | None) -> str:
        """A number to the digits that matter.

        >>> [MILLISECONDS(seconds) for seconds in (None, 0.00000123, 0.000512, 0.0734, 1.5)]
        ['-', '0.0012', '0.512', '73.40', '1500.0']
        >>> KILOCYCLES(123456.0)
        '123.5'
        """
        if value is None:
            return "-"
        shown = value * self.scale
        digits = 1 if shown >= 100 else 2 if shown >= 10 else 3 if shown >= 0.1 else 4
        return f"{shown:.{digits}f}"

    def with_label(self, value: float | None) -> str:
        """A number and its unit.

        >>> MILLISECONDS.with_label(0.5)
        '500.0 ms'
        """
        return "-" if value is None else f"{self(value)} {self.label}"


MILLISECONDS = Unit("ms", 1e3)
KILOCYCLES = Unit("kcycles", 1e-3)  # thousands of modelled cycles


def unit_called(name: str) -> Unit:
    """How to show what is measured in seconds, or in cycles."""
    return {SECONDS: MILLISECONDS, CYCLES: KILOCYCLES}[name]
