"""Saying that a photo does not show a person. `app.gallery.corrections` keeps it, `app.recognition` decides by it."""
