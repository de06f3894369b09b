"""Sign a browser in with a link that works once, and keep it signed in for some days. See docs/how-to/web-page.md."""
