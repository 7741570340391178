from __future__ import annotations

import gc
import importlib.util
import inspect
import os
import re
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from celery import current_app

import runner.approvals
from runner.approvals.directory import directory
from runner.cli import program
from runner.definition.registry import registry
from runner.settings import Settings, as_broker
from tests.celery.workers import Worker
from tests.docs import blocks, provider
from tests.integrations import openai_server

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
]
TEST = re.compile(r"\[`(test_\w+)`\]\(([^)#:]+)\)")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


# A page does not close its models' connections, as a program that ends does not; the collector warns of them.
# Collecting after the last test keeps those warnings among these tests.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True, scope="module")
def _collected():
    yield
    sys.modules.pop("__page__", None)
    gc.collect()


@pytest.fixture
def environment(redis_url, monkeypatch):
    """What the reader has: a store, the program on the path, and no graphs of other pages."""
    monkeypatch.setattr(registry, "_factories", {})
    monkeypatch.setattr(registry, "_plans", {})
    if importlib.util.find_spec("django"):
        from django.conf import settings
        from django.utils.functional import empty

        # Each page's project has its own; they are kept in the object's dictionary as they are asked for.
        vars(settings).clear()
        vars(settings)["_wrapped"] = empty
    monkeypatch.setenv("RUNNER_REDIS_URL", redis_url)
    monkeypatch.setenv("SHOP_REDIS_URL", as_broker(redis_url))  # a project's own name for it
    # For a checkout that was installed before there was a plugin; elsewhere pytest knows it anyway.
    monkeypatch.setenv("PYTEST_PLUGINS", "runner.testing.plugin")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return dict(os.environ)


def case(page: Path):
    """The how-tos boot workers of their own, one after the other: that is long for the quick suite."""
    marks = [pytest.mark.slow] if page.parent.name == "how-to" or page.name == "tour.md" else []
    return pytest.param(page, marks=marks, id=page.relative_to(ROOT).as_posix())


@pytest.mark.full
@pytest.mark.parametrize(
    "page",
    [
        case(page)
        for page in PAGES
        if page.is_file()
        and any(b.language in {"python", "console"} for b in blocks.read(page))
    ],
)
def test_every_code_block_of_a_page_runs(page, environment, tmp_path, monkeypatch):
    """What a page shows works when it is typed in, from its first block to its last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    modules, app = blocks.save(page, tmp_path)
    with ExitStack() as stack:
        served = stack.enter_context(openai_server.endpoint(provider.reply))
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        monkeypatch.setenv("OPENAI_API_KEY", "of-the-page")
        if modules:
            stack.enter_context(worker(modules, app, tmp_path)).wait_ready()
        # Another page may have a file of that name, which a thread of its server may import after its end.
        for file in tmp_path.glob("*.py"):
            sys.modules.pop(file.stem, None)
            stack.callback(sys.modules.pop, file.stem, None)
        directory.cache_clear()  # Two pages have a staff:staff.
        blocks.run(page, tmp_path, environment)


@contextmanager
def worker(modules, app, folder):
    """A worker with the page's graphs: one of ours, or one of the Celery app that the page has."""
    settings = {
        "RUNNER_GRAPHS": ",".join(modules),
        "PYTHONPATH": os.pathsep.join(
            [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    log = folder / "worker.log"
    log.touch()
    before = current_app._get_current_object()
    started = Worker(
        os.environ["RUNNER_REDIS_URL"],
        log,
        ["--pool", "threads", "--concurrency", "8"],
        settings=settings,
        app=app or "runner.celery:app",
    )
    try:
        yield started
    finally:
        started.end()
        before.set_current()


def test_every_link_of_a_page_leads_somewhere():
    """A link to another file of the repository is to a file that is there."""
    dead = [
        (page.name, target)
        for page in PAGES
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]

    assert dead == []


@pytest.mark.full
def test_every_linked_test_exists():
    """Where a page names a test as proof, that test is in the file that it links to."""
    links = [
        (page, *found)
        for page in PAGES
        for found in TEST.findall(page.read_text(encoding="utf-8"))
    ]
    missing = [
        name
        for page, name, target in links
        if f"def {name}(" not in (page.parent / target).read_text(encoding="utf-8")
    ]

    assert len(links) > 40
    assert missing == []


def targets(page):
    """The files that a page links to."""
    return [
        (page.parent / target).resolve()
        for target in LINK.findall(page.read_text(encoding="utf-8"))
    ]


def test_the_index_lists_every_page():
    """The index's sections lead to every page, and to none twice; decisions have an index of their own.

    The three ways through the pages stand above the sections, have ten pages each, and lead to listed ones.
    """
    index, decisions = ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md"
    rows = re.findall(
        r"^\| An? (?:Celery|agent|approvals) team.*", index.read_text(), re.MULTILINE
    )
    ways = [LINK.findall(row) for row in rows]
    sections = LINK.findall(index.read_text().partition("\n## ")[2])
    listed = [(index.parent / page).resolve() for page in sections] + targets(decisions)

    assert [len(set(way)) for way in ways] == [10] * 3
    assert {(index.parent / page).resolve() for way in ways for page in way} <= set(listed)

    assert len(set(listed)) == len(listed)
    assert {page.resolve() for page in PAGES} - {index, ROOT / "README.md"} <= set(listed)


def test_decisions_in_force_name_files_that_exist():
    """A decision whose code is gone says so in its status, and names the page that replaced it."""
    files = {
        path.name
        for room in ("runner", "tests", "bench")
        for path in (ROOT / room).rglob("*.*")
    }
    for page in (ROOT / "docs" / "decisions").glob("0*.md"):
        head, _, text = page.read_text(encoding="utf-8").partition("\n\n**")
        named = set(re.findall(r"`(?:[\w./]*/)?(\w+\.(?:py|lua))`", text))
        assert named <= files or re.search(r"superseded by \d{4}", head), (
            page.name,
            named - files,
        )


def test_the_glossary_has_every_word_once():
    """A word means one thing, so it is explained in one place."""
    words = re.findall(
        r"^\*\*([^*]+)\.\*\*",
        (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )

    assert len(words) == len(set(words))
    assert len(words) > 50


GLOSSARY = ROOT / "docs" / "glossary.md"
PLAIN = {
    "api",
    "config",
    "controls",
    "dev",
    "init",
    "version",
    "documents",
    "entries",
    "files",
    "sealing",
    "signed_votes",
    "system",
}
"""Commands and modules whose names mean what they mean anywhere."""
SETTINGS = {
    "alive",
    "cors",
    "flower",
    "log",
    "max",
    "on",
    "plain",
    "redis",
    "shutdown",
    "signing",
    "trace",
    "early",
}
"""First words of settings that are no nouns of the library; the second one says what they are about."""
HANDLES = re.compile(r"^Async|Result$|Context$|Builder$|State$|^Client$|^Auth$")
"""Classes of the API that hold what another word names."""


def nouns_of_features():
    """What the API, the commands, the settings, the routes and the audit speak of."""
    classes = [
        re.sub("(?<=[a-z])(?=[A-Z])", " ", name).removeprefix("Signing ")
        for module in (runner, runner.approvals)
        for name in module.__all__
        if inspect.isclass(getattr(module, name)) and not HANDLES.search(name)
    ]
    settings = [name.split("_")[0] for name in Settings.model_fields]
    rooms = [
        path.stem
        for room in ("server/api", "audit")
        for path in (ROOT / "runner" / room).glob("[a-z]*.py")
    ]
    words = (
        {word.lower() for word in [*classes, *settings, *program.runner.commands, *rooms]}
        - PLAIN
        - SETTINGS
    )
    return (words | {"dead letter"}) - {"dead"}


def test_the_glossary_has_the_nouns_of_every_feature():
    """A word of the API, a command, a setting or a route is explained, in the singular."""
    found = re.findall(
        r"^\*\*([^*]+)\.\*\*", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE
    )
    terms = {word.lower() for term in found for word in term.split(", ")}
    nouns = nouns_of_features()

    assert len(nouns) > 50
    assert sorted(word for word in nouns if not {word, word.removesuffix("s")} & terms) == []


CLI = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def test_the_page_of_the_command_line_has_every_setting():
    """The table of settings has those of the code, and no others."""
    cells = re.findall(r"^\| (`RUNNER_[^|]*) \|", CLI, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`RUNNER_(\w+)`", cell)]

    assert sorted(names) == sorted(name.upper() for name in Settings.model_fields)


def test_the_decisions_are_numbered_dated_and_listed():
    """Decisions have numbers without gaps; the index has each page's title, and what replaces it."""
    folder = ROOT / "docs" / "decisions"
    pages = sorted(folder.glob("0*.md"))
    head = re.compile(r"# (.+)\n\nDate: \d{4}-\d\d\.(?: I(ts .+)\.)?\n")
    row = re.compile(r"^\| (\d{4}) \| \[(.+)\]\((.+)\)(?:; i(.+))? \|$", re.MULTILINE)
    heads = [(page, *head.match(page.read_text(encoding="utf-8")).groups()) for page in pages]

    assert [page.name[:4] for page in pages] == [
        f"{number:04}" for number in range(1, len(pages) + 1)
    ]
    assert row.findall((folder / "README.md").read_text(encoding="utf-8")) == [
        (page.name[:4], title, page.name, replaced or "") for page, title, replaced in heads
    ]
