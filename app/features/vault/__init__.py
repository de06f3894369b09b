"""Change the encryption at rest to another key, or switch it off. See docs/how-to/encrypt.md."""
