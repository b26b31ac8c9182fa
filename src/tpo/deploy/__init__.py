"""From a scheduled model to a library that runs: compile, load, verify, bench, profile."""
