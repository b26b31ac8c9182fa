import pytest

from support import converter_runs


@pytest.fixture(autouse=True)
def same_numbers_whatever_ran_before():
    converter_runs.reseed()
