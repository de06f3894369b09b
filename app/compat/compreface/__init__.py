"""CompreFace's REST interface, as documented in its version 1.2. docs/reference/drop-ins.md lists the differences."""
