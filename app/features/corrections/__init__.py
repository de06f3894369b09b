"""Saying that a photo does not show a person. `app.recognition.corrections` keeps it and decides by it."""
