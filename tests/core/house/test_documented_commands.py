"""What people read can be followed: every fenced command parses, every file they name is there, and lines fit a screen."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from fedss.command_line import VERBS, build_app
from server_sim.experiment import experiment_names, load_experiment

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_COMMANDS = [*PAGES, ROOT / "results" / "README.md"]
PROSE = [*WITH_COMMANDS, ROOT / "CHANGELOG.md"]
LONGEST_LINE = 120
PROGRAMS = ("fedss", "make", "python", "pip")
WrongUsage = typer.BadParameter.__mro__[1]
"""What the parser raises, whichever click it is made of: the parent of all that is wrong with a command line."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def lines_of(page: Path) -> Iterator[tuple[int, str, bool]]:
    """Number, text, and whether it stands in a fenced block; the fences themselves are left out."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.startswith("```"):
            fenced = not fenced
        else:
            yield number, line, fenced
    assert not fenced, f"{name_of(page)}: a fenced block is not closed"


def commands() -> list[tuple[str, list[str]]]:
    """Place and words of every fenced command, without the remark behind it; a line that ends in `\\` goes on."""
    found = []
    for page in WITH_COMMANDS:
        begun = ""
        for number, line, fenced in lines_of(page):
            whole = begun + line
            begun = whole[:-1] if fenced and whole.endswith("\\") else ""
            if fenced and not begun and whole.startswith(tuple(f"{program} " for program in PROGRAMS)):
                found.append((f"{name_of(page)}:{number}", shlex.split(whole, comments=True)))
    return found


def of_program(*start: str) -> pytest.MarkDecorator:
    """The commands that start so, without that start."""
    first = list(start)
    chosen = [(place, words[len(first) :]) for place, words in commands() if words[: len(first)] == first]
    assert chosen, start
    return pytest.mark.parametrize(
        "words", [words for _, words in chosen], ids=[place for place, _ in chosen]
    )


def parsed(words: list[str]) -> dict[str, Any]:
    """The values of a verb's options as the real parser gives them; the verb is not run."""
    verb, *rest = words
    assert verb in VERBS, f"there is no verb {verb!r}"
    command: Any = get_command(build_app(verb))
    command = command.commands[verb]
    while hasattr(command, "commands"):
        verb, *rest = rest
        assert verb in command.commands, f"there is no verb {verb!r}, only {', '.join(command.commands)}"
        command = command.commands[verb]
    context = command.make_context(verb, list(rest))
    values: dict[str, Any] = context.params
    return values


@of_program("fedss")
def test_a_command_has_the_options_and_arguments_that_the_page_gives_it(words: list[str]) -> None:
    assert parsed(words) is not None  # the parser raises for what it does not know


@of_program("fedss", "simulate")
def test_a_simulated_experiment_exists_and_has_the_fields_that_are_set(words: list[str]) -> None:
    """A shipped one by its name, or a file."""
    experiment = words[0] if words[0] in experiment_names() else str(ROOT / words[0])
    settings = [value for option, value in pairwise(words) if option == "--set"]
    # Raises for an experiment that is not there, and for a field that it has not.
    assert load_experiment(experiment, settings).title


@of_program("make")
def test_a_target_is_in_the_makefile(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert words
    assert set(words) <= targets


@of_program("python")
def test_a_python_program_is_there(words: list[str]) -> None:
    first, *rest = words
    program = Path(*rest[0].split(".")).with_suffix(".py") if first == "-m" else Path(first)
    assert (ROOT / program).is_file()


@of_program("pip", "install", "--editable")
def test_this_project_is_installed_with_extras_that_it_has(words: list[str]) -> None:
    (project,) = words
    path, _, extras = project.rstrip("]").partition("[")
    assert (ROOT / path / "pyproject.toml").is_file()
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= {*known, ""}


def test_every_fenced_command_is_of_a_kind_that_is_tested() -> None:
    for place, words in commands():
        assert words[0] != "pip" or words[1:3] == ["install", "--editable"], f"{place}: nothing tests {words}"


def test_wrong_commands_are_found_wrong() -> None:
    for wrong in (
        ["export", "--image-sizes", "96"],
        ["export", "--image-size", "large"],
        ["inspect"],
        ["devices", "phone"],
        ["bench", "step", "--device"],
    ):
        with pytest.raises(WrongUsage):
            parsed(wrong)
    for wrong in (["train"], ["emulator", "begin"]):
        with pytest.raises(AssertionError, match="there is no verb"):
            parsed(wrong)


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_a_verb_in_a_sentence_exists(page: Path) -> None:
    for number, line, fenced in lines_of(page):
        for verb in [] if fenced else re.findall(r"`fedss ([a-z-]+)", line):
            assert verb in VERBS, f"{name_of(page)}:{number}: there is no verb {verb!r}"


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", page.read_text()):
        if target.startswith("https://"):
            continue
        linked = (page.parent / target).resolve() if target else page
        assert linked.is_file(), f"{name_of(page)} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = {
                "#" + re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings
            }
            assert anchor in anchors, f"{name_of(page)} links to {target}{anchor}, which is no heading there"


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    folders = "fedss|ondevice|export|server_sim|android_harness|tests|results|benchmarks|examples|docs"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text()):
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}, which is not there"


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_lines_fit_a_screen_and_hold_one_sentence(page: Path) -> None:
    for number, line, fenced in lines_of(page):
        if fenced or line.startswith("|"):
            continue
        place = f"{name_of(page)}:{number}"
        assert len(line) <= LONGEST_LINE, f"{place} has {len(line)} characters; at most {LONGEST_LINE} fit"
        sentences = re.split(r"(?<=[a-z0-9)`%])[.?!] (?=[A-Z`])", re.sub(r"^\s*\d+\. ", "", line))
        assert len(sentences) == 1, f"{place} holds more than one sentence: break the line between them"


def test_the_python_example_of_the_readme_compiles_and_uses_what_the_library_has() -> None:
    import fedss

    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    compile(code, "README.md", "exec")
    used = set(re.findall(r"\bfedss\.(\w+)", code))
    assert {"simulate", "report", "export"} <= used
    assert used <= set(fedss.__all__)


def test_the_readme_shows_what_the_first_command_prints() -> None:
    shown = re.findall(
        r"^<!-- output of: (.*) -->\n```\n(.*?)^```$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    ((command, output),) = shown
    assert shlex.split(command) in [words for _, words in commands()]
    assert output.strip(), f"run {command} and put what it prints there"
