"""Corrections: that a photo does not show a person. `app.gallery.corrections` keeps them, `app.recognition` decides by
them."""
