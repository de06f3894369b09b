"""Change the encryption at rest to another key, or to none. See docs/how-to/encrypt.md."""
