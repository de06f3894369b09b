"""The web page: HTML, CSS and ES modules, served as they are, without a build step. See docs/how-to/web-page.md."""
