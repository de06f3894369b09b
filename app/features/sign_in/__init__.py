"""Sign a browser in by a link that works once, and keep it signed in for some days. See
docs/how-to/web-page.md."""
