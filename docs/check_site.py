"""Check the built site: `python docs/check_site.py site`. Exits with 1 and names what is wrong.

Zensical's strict mode checks links between pages. This checks the rest: files and pictures, anchors in the
built pages, pages missing from the navigation, and anything that a browser would fetch from another host.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

NOT_PAGES = {"404.html"}
FETCHED = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("video", "src")}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect"}


@dataclass
class Page(HTMLParser):
    """Links, fetched files and anchors of one HTML file."""

    path: Path
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name, value in attrs if name in {"id", "name"} and value}
        for name in ("href", "src"):
            if (url := found.get(name)) is None:
                continue
            self.links.append(url)
            linked = tag == "link" and FETCHED_LINKS & set((found.get("rel") or "").split())
            if (tag, name) in FETCHED or linked:
                self.fetched.append(url)


def problems(site: Path) -> list[str]:
    """Return a line for each broken link, missing anchor and outside resource, and each page that nothing links to."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name not in NOT_PAGES}
    found: list[str] = []
    reached: set[Path] = {site / "index.html"}
    for path, page in pages.items():
        outside = [url for url in page.fetched if urlsplit(url).netloc]
        found += [f"{path.relative_to(site)} fetches {url} from another host" for url in outside]
        for url in page.links:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{path.relative_to(site)} links to {url}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{path.relative_to(site)} links to {url}, whose anchor does not exist")
            if target != path:
                reached.add(target)
    found += [f"No page links to {path.relative_to(site)}" for path in pages if path not in reached]
    return found


def main() -> int:
    found = problems(Path(sys.argv[1]).resolve())
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
