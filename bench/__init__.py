"""The benchmark, run as `python -m bench`. Every figure is a ratio of two things that were measured in turn, in one
run."""
