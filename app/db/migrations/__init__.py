"""Alembic's migrations, run at every start by `app.db.engine.Database`."""
