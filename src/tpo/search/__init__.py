"""Searching a space: what to measure next, and for which task."""

from tpo.search.contract import Strategy as Strategy
from tpo.search.evolve import Evolve as Evolve
from tpo.search.scheduler import TaskScheduler as TaskScheduler
from tpo.search.scheduler import estimate_seconds as estimate_seconds
