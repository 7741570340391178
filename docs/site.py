"""Hooks for mkdocs: the order of the pages, and what its Markdown has differently from GitHub's.

Links to files outside of this folder become text. Of the options of a code block, which the tests read,
only the name of a file is shown, as the title. Lists get the blank line and the indentation that they need.

For programs that read the docs, the site has each page's Markdown beside it (`how-to/agents.md` beside
`how-to/agents/`), and `llms.txt`, a list of them in the form of llmstxt.org.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
ITEM = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)
ITEM_WITH_TEXT = re.compile(rf"{ITEM.pattern}(: .+)?$", re.MULTILINE)
ROW = re.compile(r"^\| \d+ \| \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)]*)?\)")
FENCE = re.compile(r"^```(\w+)([^\n]*)$", re.MULTILINE)
FILE = re.compile(r"file=(\S+)")
NOT_SEARCHED = re.compile(r"decisions/|internals/|ideas/(benchmarks|at-scale)")
"""Pages for developers of the library: users who search look for guides."""
LISTS = re.compile(r"reference/(commands|python|doors|aisvs|digests)")
"""Pages with every word of the library: they follow the guides, unless only they have a word."""
LIST_ITEM = re.compile(r"(-|\d+\.) ")


def on_config(config: Any) -> Any:
    """Build the navigation from docs/README.md, section by section."""
    index = (HERE / "README.md").read_text(encoding="utf-8")
    _, *parts = SECTION.split(index)
    sections = zip(parts[::2], parts[1::2], strict=True)
    listed = [
        {title: [_entry(name, path) for name, path in ITEM.findall(text) if _is_page(path)]}
        for title, text in sections
    ]
    config.nav = [{"Overview": "README.md"}, *listed]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt a page."""
    return _with_plain_lists(_plain(markdown, page.file.src_uri))


def on_post_build(config: Any) -> None:
    """Write the pages' Markdown beside them, and the list of them."""
    folder = Path(config.site_dir)
    for page in HERE.rglob("*.md"):
        target = folder / page.relative_to(HERE)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = page.read_text(encoding="utf-8")
        target.write_text(_plain(text, target.relative_to(folder)), encoding="utf-8")
    lines = [f"# {config.site_name}", f"> {config.site_description}"]
    _, *parts = SECTION.split((HERE / "README.md").read_text(encoding="utf-8"))
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        items = [
            f"- [{name}]({path}){about}"
            for name, path, about in ITEM_WITH_TEXT.findall(text)
            if _is_page(path)
        ]
        lines += [f"## {title}", "\n".join(items)]
    (folder / "llms.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def _plain(markdown: str, path: str | Path) -> str:
    """Return a page without links out of the site, and without the options of code blocks."""
    folder = (HERE / path).parent

    def replacement(link: re.Match[str]) -> str:
        _, words, target, _ = link.groups()
        file = (folder / target).resolve()
        inside = file.is_relative_to(HERE) and file.is_file()
        return link[0] if inside or "://" in target else words

    return FENCE.sub(_fence, LINK.sub(replacement, markdown))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Keep a page for developers out of the search, and guides before lists."""
    if NOT_SEARCHED.match(page.file.src_uri):
        page.meta["search"] = {"exclude": True}
    elif LISTS.match(page.file.src_uri):
        page.meta["search"] = {"boost": 0.2}
    return html


def _fence(block: re.Match[str]) -> str:
    language, options = block.groups()
    file = FILE.search(options)
    title = f' title="{file[1]}"' if file else ""
    return f"```{'text' if language == 'terminal' else language}{title}"


def _with_plain_lists(markdown: str) -> str:
    lines: list[str] = []
    is_code = is_list = False
    for line in markdown.splitlines():
        is_item = not is_code and LIST_ITEM.match(line) is not None
        if is_item and not is_list and lines and lines[-1]:
            lines.append("")
        is_list = is_item or (is_list and (not line or line.startswith("  ")))
        is_code ^= line.lstrip().startswith("```")
        lines.append(f"  {line}" if is_list and line.startswith("  ") else line)
    return "\n".join(lines) + "\n"


def _entry(name: str, path: str) -> dict[str, Any]:
    """Return a page's entry; a page with a table of numbered pages is a section that holds them."""
    page = HERE / path
    rows = ROW.findall(page.read_text(encoding="utf-8"))
    below = [{title: str(Path(path).parent / target)} for title, target in rows]
    return {name: [{name: path}, *below] if below else path}


def _is_page(path: str) -> bool:
    return path.endswith(".md") and (HERE / path).resolve().is_relative_to(HERE)
