"""Other ways to do the service's work, to compare it with: the raw limit, the simple way, other libraries.

Most functions here return a function that takes one turn of a contest and returns how much it did.
"""
