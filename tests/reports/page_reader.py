"""Reads a page as a browser does and checks that it is self-contained."""

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "input"}


class PageReader(HTMLParser):
    """Collects elements with their attributes and the text; fails if elements are not nested properly."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.inside, self.texts, self.plain = [], None, {"script": [], "style": []}, []
        self.open = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag if tag in self.texts else None
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.inside = None
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.texts[self.inside] if self.inside else self.plain).append(data)

    def text(self):
        return " ".join("".join(self.plain).split())

    def all(self, tag):
        return [attributes for one, attributes in self.elements if one == tag]

    def with_class(self, name):
        return [tag for tag, attributes in self.elements if name in (attributes.get("class") or "").split()]


def charts_of(page):
    """Alternative texts of the charts."""
    return [one["alt"] for one in page.all("img") if one["src"].startswith("data:image/svg+xml")]


def check_page_is_closed(page, script=True):
    """Check that nothing but the page's own script runs, that nothing is loaded, and that the policy enforces both."""
    read = PageReader(page)
    policy = next(one["content"] for one in read.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert script or "script-src" not in rules
    for kind in ("script", "style") if script else ("style",):
        (content,) = read.texts[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    for tag, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    assert all(image["alt"] for image in read.all("img"))
    assert all("scope" in cell for cell in read.all("th"))
    assert not re.search(r"https?://|@import|url\(", page)
    assert {tag for tag, _ in read.elements} <= ALLOWED
    return read


#: Elements that pages consist of.
ALLOWED = {
    *("html", "head", "meta", "link", "title", "style", "script", "body", "main", "header", "footer", "section"),
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "b",
        "br",
        "div",
        "span",
        "strong",
        "pre",
        "code",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
    ),
    *("table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "img", "details", "summary"),
    *("form", "label", "input", "output"),
}
