from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

GENERATOR = Path(__file__).parents[2] / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated(generator):
    """What the generator writes now."""
    return generator.written()


def test_the_generated_reference_is_that_of_the_code(generated):
    """Whoever changes the API or a command runs `python docs/generate.py`, and the pages say so, too."""
    old = [
        path.name
        for path, text in generated.items()
        if path.read_text(encoding="utf-8") != text
    ]

    assert old == [], "run: python docs/generate.py"


@pytest.mark.parametrize(
    "word", ["`GraphBuilder`", "`BeforeToolCallEvent`", "`ScriptedModel`", "`run_graph`"]
)
def test_the_python_page_has_every_part_of_the_api(generated, word):
    """The library, its hooks, what tests use, and the fixtures are on the page."""
    (page,) = [text for path, text in generated.items() if path.name == "python.md"]

    assert f"### {word}\n" in page


@pytest.mark.parametrize(
    "module",
    ["runner", *map("runner.{}".format, ("approvals", "hooks", "celery", "testing", "server"))],
)
def test_every_public_name_is_under_one_subject(generator, module):
    """The reference is ordered by subject, so that a name's neighbours are what a reader needs next."""
    listed = [
        name
        for subject in generator.SUBJECTS
        for home, name, _ in generator.names_of(subject)
        if home == module
    ]
    public = [name for name, _ in generator.public_names(importlib.import_module(module))]

    assert len(listed) > 2
    assert sorted(listed) == sorted(public)


def test_every_error_has_its_advice(generator, generated):
    """The page of errors says of each what to do, and names none that is gone."""
    (page,) = [text for path, text in generated.items() if path.name == "errors.md"]
    errors = [
        name
        for name, value in generator.public_names(generator.errors)
        if isinstance(value, type)
    ]

    assert sorted(generator.ADVICE) == sorted(errors)
    assert re.findall(r"^## `(\w+)`$", page, re.MULTILINE) == errors


def test_no_public_name_is_without_words(generated):
    """Every name, method and option of the reference says what it is."""
    pages = [text for path, text in generated.items() if path.suffix == ".md"]

    assert not [
        line
        for page in pages
        for line in page.splitlines()
        if line.endswith(("`:", "`: ", ": None", "see its class."))
    ]
