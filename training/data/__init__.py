"""Training data: what a set of crops is, and the readers of the formats that such sets come in."""
