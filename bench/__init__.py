"""The benchmark, run as `python -m bench`. Every figure is a ratio of things measured in turns, in one run."""
