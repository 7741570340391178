"""What mkdocs needs to know of these pages: their order, and where links out of the folder lead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
ITEM = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)]*)?\)")
TERMINAL = re.compile(r"^```terminal.*$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Take the order of the pages from docs/README.md, section by section."""
    index = (HERE / "README.md").read_text(encoding="utf-8")
    _, *parts = SECTION.split(index)
    sections = zip(parts[::2], parts[1::2], strict=True)
    listed = [
        {title: [{name: path} for name, path in ITEM.findall(text) if _is_page(path)]}
        for title, text in sections
    ]
    config.nav = [{"All pages": "README.md"}, *listed]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files that are no pages of the site be their words alone."""
    folder = (HERE / page.file.src_uri).parent

    def kept(found: re.Match[str]) -> str:
        _, words, target, _ = found.groups()
        here = (folder / target).resolve()
        inside = here.is_relative_to(HERE) and here.is_file()
        return found[0] if inside or "://" in target else words

    return TERMINAL.sub("```text", LINK.sub(kept, markdown))


def _is_page(path: str) -> bool:
    return path.endswith(".md") and (HERE / path).resolve().is_relative_to(HERE)
