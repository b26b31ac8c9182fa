"""Candidates in, measurements out: persistent, isolated workers that build, check and time."""

from tpo.measure.contract import BuildInput as BuildInput
from tpo.measure.contract import Capabilities as Capabilities
from tpo.measure.contract import Failure as Failure
from tpo.measure.contract import Measurement as Measurement
from tpo.measure.contract import Runner as Runner
from tpo.measure.local import LocalRunner as LocalRunner
from tpo.measure.local import MeasureOptions as MeasureOptions
