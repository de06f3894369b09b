"""CompreFace's REST interface, as documented in its version 1.2. docs/moving.md lists the differences."""
