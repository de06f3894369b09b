"""Faces given to another subject of their gallery, and two subjects made one."""
