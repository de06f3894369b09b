"""The key that the server signs with, as everybody may see it."""
