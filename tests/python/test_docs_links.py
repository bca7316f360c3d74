"""Relative links of the documents, the README included, lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.S | re.M)
MADE_BY_BUILD = ("../cpp-api/index.html",)


def anchors_of(text):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ +(.*)$", CODE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def broken_links(document):
    """What a page links to and what is not there."""
    text = document.read_text()
    broken = []
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target) or target in MADE_BY_BUILD:
            continue
        path, _, anchor = target.partition("#")
        found = (document.parent / path) if path else document
        if not found.exists() or (anchor and anchor not in anchors_of(found.read_text())):
            broken.append(target)
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    assert broken_links(document) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A Heading\n[a](none.md) [b](#a-heading) [c](#none) [d](page.md#a-heading)\n")
    assert broken_links(page) == ["none.md", "#none"]
