"""The manual pages, as man and mandoc read them."""

import shutil
import subprocess

import pytest

from reshard_job import BINARY

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
PAGES = ["reshard.1", "reshard.toml.5"]


def page_file(name, scratch):
    made = subprocess.run([BINARY, "man", name], capture_output=True, text=True, timeout=30)
    assert made.returncode == 0 and not made.stderr
    assert made.stdout.isascii() and not any(line.rstrip() != line for line in made.stdout.splitlines())
    path = scratch / name
    path.write_text(made.stdout)
    return path


def tool(name):
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("command", [("man", "--warnings", "-l"), ("mandoc", "-Tlint"), ("groff", "-man", "-ww", "-z", "-Tutf8")], ids=lambda c: c[0])
def test_pages_are_clean(command, name, scratch):
    said = subprocess.run([tool(command[0]), *command[1:], str(page_file(name, scratch))], capture_output=True, text=True, timeout=60,
                          env={"PATH": "/usr/bin:/bin", "MANPAGER": "cat", "LC_ALL": "C.UTF-8", "MANROFFOPT": ""})
    shown = said.stdout if command[0] == "mandoc" else ""
    assert said.returncode == 0 and not said.stderr and not shown, said.stderr + shown


def test_every_command_of_the_help_is_in_the_page(scratch):
    text = page_file("reshard.1", scratch).read_text()
    help_text = subprocess.run([BINARY, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    commands = [line.split()[0] for line in help_text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines() if line[2] != " "]
    assert len(commands) >= 10
    for command in commands:
        assert f'.SS "reshard {command.replace("-", chr(92) + "-")} ' in text, command


def test_an_unknown_page_is_a_mistake():
    said = subprocess.run([BINARY, "man", "reshard.7"], capture_output=True, text=True, timeout=30)
    assert said.returncode == 2 and "reshard.toml.5" in said.stderr
