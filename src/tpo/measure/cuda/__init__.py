"""Kernels for CUDA, and what can be said of them without a GPU."""

from tpo.measure.cuda.emulator import ORDERS as ORDERS
from tpo.measure.cuda.emulator import EmulationError as EmulationError
from tpo.measure.cuda.emulator import Emulator as Emulator
from tpo.measure.cuda.program import Launch as Launch
from tpo.measure.cuda.program import Program as Program
from tpo.measure.cuda.program import program_of as program_of
from tpo.measure.cuda.resources import CubinError as CubinError
from tpo.measure.cuda.resources import Resources as Resources
from tpo.measure.cuda.resources import resources_of as resources_of
