"""Sealing what is stored, and signing what is handed out; knows no database and no settings."""
