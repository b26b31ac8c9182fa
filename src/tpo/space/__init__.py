"""From rules and a workload to sketches and candidates."""

from tpo.space.candidate import Candidate as Candidate
from tpo.space.compose import Problem as Problem
from tpo.space.space import Sketch as Sketch
from tpo.space.space import Space as Space
from tpo.space.space import build_space as build_space
from tpo.space.space import default_candidate as default_candidate
