"""The public part of the key that the server signs with."""
