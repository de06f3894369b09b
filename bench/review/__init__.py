"""How good the findings of a review are: on LFW with labels corrupted on purpose, and how it grows."""
