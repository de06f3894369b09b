"""Corrections: records that a photo does not show a person (see `app.gallery.corrections`)."""
