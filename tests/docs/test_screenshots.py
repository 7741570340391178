from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.integrations.extras import need
from tests.ports import free_port

pytestmark = pytest.mark.full

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pictures_of_the_server_are_small():
    """The guides load quickly, and the repository stays light."""
    sizes = [path.stat().st_size for path in DOCS.glob("images/server-*.png")]

    assert len(sizes) == 3
    assert max(sizes) < 150_000
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    pictures = [path for path in DOCS.glob("images/desk-*.png") if path.name in readme]
    assert len(pictures) == 3
    assert max(path.stat().st_size for path in pictures) <= 80_000


def test_the_picture_of_slack_draws_what_is_sent(redis_url, monkeypatch):
    """All texts of both messages are in it, and a block that it can't draw is an error, not left out."""
    need("slack_sdk", "slack")
    monkeypatch.syspath_prepend(DOCS)
    import slack_picture

    shop = slack_picture.Refunds(redis_url)
    with closing(shop.client.engine.store):
        asked, decided = shop.messages()
    drawn = slack_picture.drawn([asked, decided])

    sections = [block["text"]["text"] for block in (asked[0], decided[0])]
    notes = [block["elements"][0]["text"] for block in (asked[1], decided[1])]
    buttons = [button["text"]["text"] for button in asked[2]["elements"]]
    assert buttons == ["Approve", "Reject", "Open"]
    for text in sections + notes + buttons:
        assert text in drawn
    with pytest.raises(KeyError):
        slack_picture.drawn([[{"type": "image", "image_url": "x"}]])


@pytest.mark.slow
def test_the_pictures_show_what_the_pages_have(redis_url, monkeypatch):
    """Menu, tabs, headings and columns are those of the day they were taken: else run docs/screenshots.py."""
    monkeypatch.syspath_prepend(DOCS)
    import screenshots

    shop = screenshots.Shop(redis_url)
    paths = shop.fill()
    with screenshots.served(shop, free_port()) as url:
        shown = {
            name: screenshots.outline(url + paths[page])
            for name, (page, *_) in screenshots.KEPT.items()
        }

    assert shown == json.loads(screenshots.OUTLINES.read_text())
    assert {"Home", "Runs", "Graph", "Events", "Decisions"} <= set(shown["server-run"])


@pytest.mark.slow
def test_the_pictures_can_be_taken_again(tmp_path):
    """The script fills a store, serves it, and takes each page that is asked for in both themes."""
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    command = [sys.executable, DOCS / "screenshots.py", tmp_path, "graphs"]
    subprocess.run(command, check=True, timeout=120)

    assert len(list(tmp_path.glob("graphs-*.png"))) == 4
