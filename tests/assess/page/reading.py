"""A page as a browser reads it: elements, policy, scripts."""

import base64
import hashlib
import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects elements with their attributes, and the texts of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.inside, self.texts, self.plain = [], None, {"script": [], "style": []}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag if tag in self.texts else None

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        (self.texts[self.inside] if self.inside else self.plain).append(data)

    def text(self):
        return " ".join(" ".join(self.plain).split())

    def all(self, tag):
        return [attributes for one, attributes in self.elements if one == tag]

    def with_class(self, name):
        return [tag for tag, attributes in self.elements if name in (attributes.get("class") or "").split()]


def check_closed(page):
    """Nothing runs but the one script, nothing is loaded from elsewhere, and the policy says so."""
    read = Reader(page)
    policy = next(one["content"] for one in read.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for kind in ("script", "style"):
        (content,) = read.texts[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    for tag, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    assert not re.search(r"https?://|@import|url\(", page)
    assert {tag for tag, _ in read.elements} <= ALLOWED
    return read


#: Elements that a page is made of.
ALLOWED = {
    "html",
    "head",
    "meta",
    "link",
    "title",
    "style",
    "script",
    "body",
    "main",
    "header",
    "footer",
    "section",
    "h1",
    "h2",
    "h3",
    "h4",
    "p",
    "b",
    "div",
    "span",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "figure",
    "figcaption",
    "svg",
    "text",
    "rect",
    "ul",
    "ol",
    "li",
    "form",
    "label",
    "input",
    "output",
    "details",
    "summary",
    "img",
}
