"""Completions, asked of the shells themselves."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from reshard_job import BINARY

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
COMMANDS = {"convert", "run", "plan", "nightly", "verify", "diff", "digest", "suspects", "extract", "inspect", "ls", "check-map", "completion", "init", "view"}
FORMATS = {"megatron", "huggingface", "dcp", "torch_dist", "fsdp_dtensor", "hdf5", "deepspeed", "mistral"}


def script(shell, folder):
    path = Path(folder) / f"completion.{shell}"
    path.write_text(subprocess.run([BINARY, "completion", shell], capture_output=True, text=True, check=True, timeout=30).stdout)
    return path


def shell_of(name):
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def place(scratch):
    """A folder with something to complete, the program in PATH and two maps beside it."""
    (scratch / "job.toml").write_text("")
    (scratch / "joke.txt").write_text("")
    (scratch / "jobs").mkdir()
    maps = scratch / "maps"
    maps.mkdir()
    for name in ("zebra", "yak"):
        (maps / f"{name}.toml").write_text("")
    return scratch


def environment(place):
    return os.environ | {"RESHARD_MAPS": str(place / "maps"), "PATH": f"{Path(BINARY).parent}:{os.environ['PATH']}", "HOME": str(place)}


BASH = r"""
set -u
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="${COMP_WORDS[*]}"
COMP_POINT=${#COMP_LINE}
compopt() { :; }
_reshard
printf '%s\n' "${COMPREPLY[@]+"${COMPREPLY[@]}"}"
"""


def bash(place, *words):
    """The candidates for the last word; readline breaks words at '='."""
    done = subprocess.run([shell_of("bash"), "--norc", "-c", BASH, "bash", str(script("bash", place)), "reshard", *words], capture_output=True, text=True,
                          cwd=place, env=environment(place), timeout=30)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())


def test_bash_completes_commands(place):
    assert bash(place, "") >= COMMANDS and "man" not in bash(place, "")
    assert bash(place, "ver") == {"verify"}
    assert bash(place, "--v") == {"--version"}


def test_bash_completes_options_of_the_command(place):
    assert bash(place, "run", "--d") == {"--device", "--dry-run"}
    assert bash(place, "plan", "--d") == {"--device"}
    assert "--replicas" in bash(place, "verify", "a", "--") and "--replicas" not in bash(place, "diff", "a", "--")


def test_bash_completes_choices(place):
    assert bash(place, "run", "--device", "") == {"auto", "host", "cuda", "emulated"}
    assert bash(place, "run", "--device", "=", "e") == {"emulated"}
    assert bash(place, "completion", "") == {"bash", "zsh", "fish"}


def test_bash_completes_files(place):
    assert bash(place, "run", "jo") == {"job.toml", "jobs"}
    assert bash(place, "inspect", "jo") == {"job.toml", "joke.txt", "jobs"}
    assert bash(place, "run", "job.toml", "--trace", "jok") == {"joke.txt"}


def test_bash_completes_maps(place):
    assert bash(place, "check-map", "z") == {"zebra"}
    assert bash(place, "ls", ".", "--map", "y") == {"yak"}


def test_bash_completes_keys_and_their_values(place):
    assert bash(place, "run", "job.toml", "--set", "target.f") == {"target.format="}
    assert bash(place, "run", "job.toml", "--set", "nightly.") == {
        "nightly.keep=", "nightly.settle_seconds=", "nightly.backfill=", "nightly.after=", "nightly.after_seconds=",
        "nightly.verify_subset=", "nightly.incremental="}
    assert bash(place, "run", "job.toml", "--set", "target.format", "=") == FORMATS
    assert bash(place, "run", "job.toml", "--set", "target.format", "=", "h") == {"huggingface", "hdf5"}
    assert bash(place, "run", "job.toml", "--set", "target.format=h") == {"target.format=huggingface", "target.format=hdf5"}
    assert bash(place, "run", "job.toml", "--set", "target.replace", "=") == {"true", "false"}
    assert bash(place, "run", "job.toml", "--set", "model.map", "=", "ze") == {"zebra"}
    assert bash(place, "run", "job.toml", "--set", "target.path", "=", "jok") == {"joke.txt"}
    assert bash(place, "run", "--set", "run.device", "=", "host", "--dr") == {"--dry-run"}


def test_every_key_of_the_job_file_is_offered(place):
    defaults = subprocess.run([BINARY, "--print-defaults"], capture_output=True, text=True, check=True, timeout=30).stdout
    keys, table = set(), ""
    for line in defaults.splitlines():
        line = line.removeprefix("# ")
        if line.startswith("["):
            table = line.strip("[]")
        elif line.partition(" = ")[0].replace("_", "").replace(".", "").isalnum() and " = " in line:
            keys.add(f"{table}.{line.partition(' = ')[0]}=")
    assert len(keys) > 40
    assert bash(place, "run", "--set", "") == keys


def fish(place, line):
    asked = f"source {script('fish', place)}; complete -C '{line}'"
    done = subprocess.run([shell_of("fish"), "--no-config", "-c", asked], capture_output=True, text=True, cwd=place, env=environment(place), timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return {row.partition("\t")[0] for row in done.stdout.splitlines()}


def test_fish_completes(place):
    assert fish(place, "reshard ") >= COMMANDS
    assert fish(place, "reshard run --d") == {"--device", "--dry-run"}
    assert fish(place, "reshard run --device ") == {"auto", "host", "cuda", "emulated"}
    assert fish(place, "reshard run --set target.format=h") == {"target.format=huggingface", "target.format=hdf5"}
    assert {"zebra", "yak", "auto"} <= fish(place, "reshard check-map ")
    assert "job.toml" in fish(place, "reshard run jo")


# Types a line and a tab into a shell of its own, and shows what stands in the line then.
ZSH = r"""
zmodload zsh/zpty
zpty session zsh -f -i
zpty -w session "PS1= PS2= ; unsetopt zle_bracketed_paste; autoload -Uz compinit && compinit -u -D && source $1"
zpty -w session "show() { print -r -- \"<<\$BUFFER>>\"; exit }; zle -N show; bindkey '^X' show; print ready-\$((1 + 1))"
zpty -r session out '*ready-2*'
zpty -w -n session "$2"$'\t'
zpty -w -n session $'\x18'
zpty -r session out '*>>*'
print -r -- "$out"
"""


def zsh(place, typed):
    """The line after a tab."""
    done = subprocess.run([shell_of("zsh"), "-f", "-c", ZSH, "zsh", str(script("zsh", place)), typed], capture_output=True, text=True, cwd=place,
                          env=environment(place) | {"TERM": "dumb"}, timeout=60)
    return done.stdout.rpartition("<<")[2].partition(">>")[0]


def test_zsh_completes(place):
    assert subprocess.run([shell_of("zsh"), "-n", str(script("zsh", place))], capture_output=True).stderr == b""
    assert zsh(place, "reshard veri") == "reshard verify "
    assert zsh(place, "reshard run --dry") == "reshard run --dry-run "
    assert zsh(place, "reshard run --device emu") == "reshard run --device emulated "
    assert zsh(place, "reshard run --set target.form") == "reshard run --set target.format="
    assert zsh(place, "reshard run --set target.format=hug") == "reshard run --set target.format=huggingface "
    assert zsh(place, "reshard check-map ze") == "reshard check-map zebra "


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_scripts_parse(shell, place):
    done = subprocess.run([shell_of(shell), "-n", str(script(shell, place))], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr


def test_shellcheck_finds_nothing(place):
    done = subprocess.run([shell_of("shellcheck"), "-s", "bash", "-f", "json", str(script("bash", place))], capture_output=True, text=True)
    assert json.loads(done.stdout) == []
