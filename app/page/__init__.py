"""The web page: plain HTML, CSS and ES modules, served as they lie here. See docs/how-to/web-page.md."""
