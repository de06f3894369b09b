"""Alembic's migrations, run at every start by `app.gallery.database.Database`."""
