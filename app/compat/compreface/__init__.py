"""CompreFace's REST interface, as its version 1.2 documents it, over this service's own operations.

What is the same and what differs is in docs/reference/drop-ins.md.
"""
