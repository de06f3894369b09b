"""Create the keys that a YAML file declares, for installations that are set up by files. See docs/how-to/keys.md."""
