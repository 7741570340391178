"""The site shows the pages as GitHub does: mkdocs reads Markdown in another way."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site():
    """Return the hooks, which are not in a package."""
    spec = importlib.util.spec_from_file_location("docs_site", DOCS / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adapted(site, markdown, path="how-to/deploy.md"):
    """Return a page's Markdown as mkdocs gets it."""
    return site.on_page_markdown(markdown, SimpleNamespace(file=SimpleNamespace(src_uri=path)))


@pytest.mark.parametrize(
    ("fence", "shown"),
    [
        ("```python", "```python"),
        ("```python file=shop.py app=shop:app", '```python title="shop.py"'),
        ("```python needs=strands", "```python"),
        ("```terminal host=1", "```text"),
    ],
)
def test_options_of_code_blocks_are_not_shown(site, fence, shown):
    """A fence with options that mkdocs does not know would be shown as text."""
    assert adapted(site, f"{fence}\nx = 1\n```\n") == f"{shown}\nx = 1\n```\n"


def test_a_list_begins_after_a_blank_line(site):
    """A list directly below a line of text stays a list."""
    assert (
        adapted(site, "Tests:\n- one\n  more\n- two\n") == "Tests:\n\n- one\n    more\n- two\n"
    )


def test_code_in_a_list_belongs_to_its_item(site):
    """An item's code is indented as mkdocs needs it; what looks like a list in code is left alone."""
    assert adapted(site, "- one\n\n  ```sh\n  ls\n  ```\n\nend\n") == (
        "- one\n\n    ```sh\n    ls\n    ```\n\nend\n"
    )
    assert adapted(site, "```text\nlist:\n- one\n```\n") == "```text\nlist:\n- one\n```\n"


def test_links_out_of_the_site_are_text(site):
    """A link to a file that the site doesn't have would be dead."""
    page = "[deploy](deploy.md), [code](../../runner/client.py)\n"

    assert adapted(site, page) == "[deploy](deploy.md), code\n"


def test_the_navigation_is_the_index(site):
    """Every section of the index is one of the navigation, in its order; the overview comes first."""
    nav = site.on_config(SimpleNamespace(nav=None)).nav

    assert nav[0] == {"Overview": "README.md"}
    assert [title for section in nav[1:] for title in section] == [
        "Get started",
        "Write graphs",
        "Migrate and integrate",
        "Ask people",
        "Operate",
        "Reference",
        "Maintain",
    ]


@pytest.mark.parametrize(
    ("path", "is_searched"),
    [
        ("how-to/retry-and-fork.md", True),
        ("ideas/promises.md", True),
        ("decisions/0002-loops.md", False),
        ("internals/README.md", False),
        ("ideas/benchmarks.md", False),
    ],
)
def test_a_search_finds_guides_and_no_notes_of_developers(site, path, is_searched):
    """Decisions, internals and benchmarks are in the navigation, and not in the search."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})

    assert site.on_page_content("<p>", page) == "<p>"
    assert (page.meta == {}) == is_searched


@pytest.mark.full
def test_programs_find_each_page_as_markdown(site, tmp_path):
    """`llms.txt` leads to each page of the navigation; its links and those between pages lead to files."""
    config = site.on_config(
        SimpleNamespace(site_dir=tmp_path, site_name="a", site_description="b")
    )
    site.on_post_build(config)
    index = (tmp_path / "llms.txt").read_text()
    listed = re.findall(r"^- \[.+?\]\((\S+)\)(?:: .+)?$", index, re.MULTILINE)
    pages = [tmp_path / path for path in listed]
    links = {
        page.parent / link
        for page in pages
        for link in re.findall(r"\]\(([^)\s#:]+\.md)", page.read_text())
    }

    assert index.startswith("# a\n\n> b\n\n## Get started\n\n- [")
    assert index.count("\n- [") == len(listed)
    assert set(re.findall(r"'([^']+\.md)'", str(config.nav))) - {"README.md"} <= {
        *listed,
        *(f"{Path(page).relative_to(tmp_path)}" for page in map(Path.resolve, links)),
    }
    assert [path for path in (*pages, *links) if not path.is_file()] == []
