"""Landscapes: workloads of which every candidate was measured, to search in without hardware.

A landscape is one small SQLite file that needs neither TVM nor the rules it was made with: the sites of every
sketch, and for each candidate its decisions, its time and its features. A few come with tpo (`shipped`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpo.cost.contract import Features
from tpo.errors import LandscapeError
from tpo.lang import Choice, ComputeLocation, PartitionedTile, PerfectTile
from tpo.measure.contract import Failure, Measurement
from tpo.space.decisions import MAX_CHANGED, Domain, Rows, Site

SHIPPED = Path(__file__).parent / "landscapes"  # which scripts/record_landscapes.py has recorded
_KINDS = {kind.__name__: kind for kind in (Choice, PerfectTile, PartitionedTile, ComputeLocation)}
_SCHEMA = """
CREATE TABLE landscape (about TEXT NOT NULL);
CREATE TABLE sketches (id INTEGER PRIMARY KEY, name TEXT NOT NULL, sites TEXT NOT NULL, preferred TEXT);
CREATE TABLE candidates (sketch INTEGER REFERENCES sketches(id), decided TEXT, seconds REAL, features BLOB);
"""


@dataclass(frozen=True)
class RecordedDomain(Domain):
    """The rows that were measured, and no others: what is nearly one of them is the nearest of them."""

    rows: Rows = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @property
    def support(self) -> int:
        """How many were measured."""
        return len(self.rows)

    def every(self) -> Rows:
        """All of them."""
        return self.rows

    def draw(self, count: int, rng: np.random.Generator) -> Rows:
        """Some of them."""
        return self.rows[rng.integers(len(self.rows), size=count)]

    def spread(self, count: int, rng: np.random.Generator) -> Rows:
        """Some of them, none twice."""
        return self.rows[rng.permutation(len(self.rows))[:count]]

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """For each row another one that differs in one to three decisions, or in as few as there are."""
        wanted = rng.integers(1, MAX_CHANGED + 1, len(rows))
        return self._nearest(rows, wanted, rng)

    def cross(self, left: Rows, right: Rows, rng: np.random.Generator) -> Rows:
        """The nearest to what two parents would have."""
        child = np.where(rng.random(left.shape) < 0.5, left, right)
        return self._nearest(child, np.zeros(len(left), np.int64), rng)

    def allowed(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows were measured."""
        known = {row.tobytes() for row in self.rows}
        return np.array([row.tobytes() in known for row in rows], np.bool_)

    def _nearest(self, rows: Rows, wanted: Rows, rng: np.random.Generator) -> Rows:
        found = np.empty_like(rows)
        for k, (row, distance) in enumerate(zip(rows, wanted, strict=True)):
            differing = (self.rows != row).sum(axis=1)
            off = np.abs(differing - distance) + np.where((differing == 0) & (distance > 0), np.inf, 0.0)
            found[k] = self.rows[np.argmin(off + rng.random(len(off)) / 2)]
        return found


@dataclass(frozen=True)
class RecordedSketch:
    """A sketch with everything that was measured of it; seconds are infinite for failures."""

    name: str
    sites: tuple[Site, ...]
    rows: Rows
    seconds: NDArray[np.float64]
    features: Features
    preferred_row: Rows

    @cached_property
    def places(self) -> dict[bytes, int]:
        """Where each row is among them."""
        return {row.tobytes(): k for k, row in enumerate(self.rows)}

    @cached_property
    def domain(self) -> RecordedDomain:
        """Its decisions, as far as they were measured."""
        return RecordedDomain(self.sites, rows=self.rows)


@dataclass(frozen=True)
class RecordedCandidate:
    """A candidate of a landscape."""

    sketch: str
    row: NDArray[np.int64] = field(compare=False)

    @property
    def key(self) -> str:
        """Unique in the landscape."""
        text = f"{self.sketch}:{','.join(map(str, self.row))}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Landscape:
    """A space whose every candidate has a time; `about` says of what workload, on which machine."""

    about: dict[str, Any]
    sketches: tuple[RecordedSketch, ...]

    @property
    def key(self) -> str:
        """The workload's."""
        return str(self.about["key"])

    @property
    def best(self) -> float:
        """Seconds of the fastest candidate."""
        return min(float(sketch.seconds.min()) for sketch in self.sketches if len(sketch.seconds))

    def __len__(self) -> int:
        return sum(len(sketch.seconds) for sketch in self.sketches)

    def sketch(self, name: str) -> RecordedSketch | None:
        """The sketch of a name."""
        return next((sketch for sketch in self.sketches if sketch.name == name), None)

    def default(self) -> RecordedCandidate:
        """What the first sketch prefers."""
        first = self.sketches[0]
        preferred = [row for row in first.preferred_row if row.tobytes() in first.places]
        return RecordedCandidate(first.name, preferred[0] if preferred else first.rows[0])

    def at(self, sketch: RecordedSketch, row: NDArray[np.int64], seed: int = 1) -> RecordedCandidate | None:
        """The candidate of a row, if it was measured."""
        return RecordedCandidate(sketch.name, row) if row.tobytes() in sketch.places else None

    def row(self, candidate: RecordedCandidate) -> tuple[RecordedSketch, NDArray[np.int64]] | None:
        """Its sketch and row."""
        sketch = self.sketch(candidate.sketch)
        return None if sketch is None else (sketch, candidate.row)

    def measure(self, candidate: RecordedCandidate) -> Measurement:
        """What was measured of a candidate."""
        sketch = self.sketch(candidate.sketch)
        assert sketch is not None
        seconds = float(sketch.seconds[sketch.places[candidate.row.tobytes()]])
        return (
            Measurement(seconds)
            if np.isfinite(seconds)
            else Measurement.failed(Failure.RUN_ERROR, "it failed")
        )

    def features(self, sketch: RecordedSketch, rows: Rows) -> Features:
        """The features that were recorded, zeros where nothing was: a landscape is its own extractor."""
        places = np.array([sketch.places.get(row.tobytes(), -1) for row in rows], np.int64)
        return np.where((places >= 0)[:, None], sketch.features[places], np.float32(0))

    def watch(self, sketch: RecordedSketch, rows: Rows, most: int | None = None) -> bool:
        """There is nothing to get to know: features were recorded as they are."""
        return False

    def save(self, path: Path) -> None:
        """Write it as one file."""
        temporary = path.with_name(path.name + ".part")
        temporary.unlink(missing_ok=True)
        with closing(sqlite3.connect(temporary)) as database, database:
            database.executescript(_SCHEMA)
            database.execute("INSERT INTO landscape VALUES (?)", (json.dumps(self.about),))
            for number, sketch in enumerate(self.sketches):
                preferred = json.dumps(sketch.preferred_row.tolist())
                sites = json.dumps([_site_to_json(site) for site in sketch.sites])
                database.execute(
                    "INSERT INTO sketches VALUES (?, ?, ?, ?)", (number, sketch.name, sites, preferred)
                )
                database.executemany(
                    "INSERT INTO candidates VALUES (?, ?, ?, ?)",
                    [
                        (
                            number,
                            json.dumps(row.tolist()),
                            None if np.isinf(time) else float(time),
                            _pack(line),
                        )
                        for row, time, line in zip(sketch.rows, sketch.seconds, sketch.features, strict=True)
                    ],
                )
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Landscape:
        """What `save` wrote."""
        if not path.is_file():
            raise LandscapeError(path=path, why="there is no such file")
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                ((about,),) = database.execute("SELECT about FROM landscape").fetchall()
                sketches = tuple(
                    _sketch(database, number, name, sites, preferred)
                    for number, name, sites, preferred in database.execute(
                        "SELECT * FROM sketches ORDER BY id"
                    )
                )
                found = cls(json.loads(about), sketches)
        except (sqlite3.Error, ValueError, KeyError) as error:
            raise LandscapeError(path=path, why=str(error)) from error
        if not len(found) or not np.isfinite(found.best):
            raise LandscapeError(path=path, why="nothing in it was measured")
        return found


def shipped() -> list[Path]:
    """The landscapes that tpo comes with."""
    return sorted(SHIPPED.glob("*.db"))


def _sketch(
    database: sqlite3.Connection, number: int, name: str, sites: str, preferred: str
) -> RecordedSketch:
    lines = database.execute(
        "SELECT decided, seconds, features FROM candidates WHERE sketch = ? ORDER BY rowid", (number,)
    ).fetchall()
    known = tuple(_site_from_json(site) for site in json.loads(sites))
    return RecordedSketch(
        name,
        known,
        np.array([json.loads(decided) for decided, _, _ in lines], np.int64).reshape(len(lines), len(known)),
        np.array([np.inf if seconds is None else seconds for _, seconds, _ in lines]),
        np.stack([np.frombuffer(blob, np.float16).astype(np.float32) for _, _, blob in lines]),
        np.array(json.loads(preferred), np.int64).reshape(-1, len(known)),
    )


def _pack(line: NDArray[np.float32]) -> bytes:
    """Features in half precision: they are logarithms and small numbers."""
    return np.clip(line, -6e4, 6e4).astype(np.float16).tobytes()


def _site_to_json(site: Site) -> dict[str, Any]:
    distribution = site.distribution
    if distribution is None:
        return {"name": site.name}
    content = {f.name: getattr(distribution, f.name) for f in fields(distribution)}  # type: ignore[arg-type]
    content.pop("loop", None)
    content.pop("block", None)
    return {"name": site.name, "kind": type(distribution).__name__, "fields": _plain(content)}


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, Sequence) else value for key, value in content.items()}


def _site_from_json(content: dict[str, Any]) -> Site:
    if "kind" not in content:
        return Site(content["name"], None)
    return Site(content["name"], _KINDS[content["kind"]](**content["fields"]))
