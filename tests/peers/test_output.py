"""What cannot be written is said: a full or closed stdout, a job file without a place, a page inside a checkpoint."""

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import bad_sources
from bad_job import IO, RESOURCES, TIMEOUT_SECONDS, USAGE, command_of, environment, own_words
from reshard_job import BINARY

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
SHIM = os.environ.get("RESHARD_DELAY_SHIM")
SAMPLE = Path(__file__).parents[1] / "data" / "moe-tp2-pp2-ep2"


def reshard(folder, *words, shell="exec \"$@\""):
    """`shell` can redirect or limit what the program has."""
    return subprocess.run(["bash", "-c", shell, "bash", BINARY, *map(str, words)], capture_output=True, text=True, cwd=folder, env=environment(),
                          timeout=TIMEOUT_SECONDS)


@pytest.fixture
def job(scratch):
    done = reshard(scratch, "init", SAMPLE, "-o", "job.toml")
    assert done.returncode == 0, done.stderr
    return scratch / "job.toml"


LOOKS = [["init", SAMPLE], ["view", SAMPLE, "-o", "-"], ["view", SAMPLE, "--json"], ["view", SAMPLE, "-o", "page.html"], ["plan", "job.toml"],
         ["plan", "job.toml", "--json"], ["run", "job.toml", "--dry-run"], ["nightly", "job.toml", "--dry-run"], ["inspect", SAMPLE], ["ls", SAMPLE],
         ["digest", SAMPLE], ["verify", SAMPLE, SAMPLE], ["clean", "target"], ["check-map", "qwen3_moe"], ["completion", "bash"], ["man", "reshard.1"],
         ["--print-defaults"], ["--version"], ["--help"], ["ls", "--help"]]


@pytest.mark.long_but("view-*-o-", "run-*", "verify-*", "ls-help")
@pytest.mark.parametrize("words", LOOKS, ids=lambda words: "-".join(str(word).lstrip("-").split("/")[-1] for word in words))
def test_a_full_or_closed_stdout_is_an_error(words, job):
    if words[0] == "nightly":  # its source is a folder of checkpoints
        job.write_text(job.read_text().replace(str(SAMPLE), str(SAMPLE.parent)))
        if reshard(job.parent, *words).returncode != 0:
            pytest.skip("the folder is none for nightly")
    for shell, code in (('exec "$@" >/dev/full', RESOURCES), ('exec "$@" >&-', IO)):
        done = reshard(job.parent, *words, shell=shell)
        assert done.returncode == code, done.stderr
        assert "stdout: cannot be written" in own_words(done.stderr)


@pytest.mark.parametrize("words, code", [(["run", "job.toml", "--json"], 4), (["verify", "nowhere", "--json"], 3), (["--json", "inspect", "nowhere"], 3),
                                         (["ls", "--json"], 2), (["clean", "--json"], 2)])
def test_an_error_is_a_document_too(words, code, job):
    assert reshard(job.parent, "run", job).returncode == 0
    done = reshard(job.parent, *words)
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"]) == (code, code)
    assert "error: " + document["error"] in done.stderr


def test_a_log_has_the_time_in_each_line(job):
    """Where both streams are one file; a file for the report alone is a report."""
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d reshard: "
    for _ in range(2):
        reshard(job.parent, "run", job, shell='exec "$@" >>log 2>&1')
    said = (job.parent / "log").read_text().splitlines()
    assert all(re.match(stamp, line) for line in said), said
    assert re.match(stamp + "error: ", said[-1]) and any(re.match(stamp + "digest ", line) for line in said)
    reshard(job.parent, "run", job, "--fresh", "--set", "target.path=other", shell='exec "$@" >report')
    assert (job.parent / "report").read_text().startswith("source ")
    done = reshard(job.parent, "run", job, "--log-format", "json")
    assert json.loads(done.stderr.splitlines()[-1])["level"] == "error"
    done = reshard(job.parent, "run", job, "--log-format", "json", "--set", "target.path=third")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["report"]["type"] == "result"


@pytest.mark.skipif(not SHIM, reason="RESHARD_DELAY_SHIM is not set: nothing makes a file system slow")
def test_a_terminal_has_a_line_for_each_phase(job):
    """At once, also while nothing is copied yet; no line is longer than the terminal."""
    (job.parent / "delay").write_text("700")  # milliseconds before each write
    slow = {"LD_PRELOAD": SHIM, "RESHARD_DELAY_PATH": str(job.parent), "RESHARD_DELAY_FILE": str(job.parent / "delay"), "TERM": "xterm"}
    (parent, child), words = pty.openpty(), ["bash", "-c", "stty cols 80 <&2; exec \"$@\"", "bash", BINARY, "run", job]
    with subprocess.Popen(words, stderr=child, stdout=subprocess.DEVNULL, cwd=job.parent, env=environment() | slow) as running:
        os.close(child)
        said = b""
        try:
            while part := os.read(parent, 1 << 16):
                said += part
        except OSError:  # the other side is closed
            pass
    os.close(parent)
    assert running.returncode == 0
    lines = [line for line in re.split(r"[\r\n]", said.decode().replace("\x1b[K", "")) if line and not line.startswith("warning: ")]
    assert all(len(line) < 80 for line in lines), lines
    assert any(re.fullmatch(r"copying  0:00:0\d", line) or re.match(r"copy +\[", line) for line in lines), lines


def test_inspect_knows_a_config_of_another_model(scratch):
    text = reshard(scratch, "init", SAMPLE, "--target-format", "huggingface", "-o", "hf.toml")
    assert text.returncode == 0, text.stderr
    done = reshard(scratch, "run", "hf.toml", "--set", "target.path=hf", "--set", f"target.reference={SAMPLE.parent / 'moe-hf-reference'}")
    assert done.returncode == 0, done.stderr
    assert json.loads(reshard(scratch, "inspect", "hf", "--json").stdout)["notes"] == []
    config = json.loads((scratch / "hf" / "config.json").read_text())
    (scratch / "hf" / "config.json").write_text(json.dumps(config | {"num_attention_heads": config["num_attention_heads"] // 2}))
    (note,) = json.loads(reshard(scratch, "inspect", "hf", "--json").stdout)["notes"]
    assert "config.json is of another model" in note


def test_a_plan_is_shown_with_what_stands_in_its_way(job):
    assert reshard(job.parent, "run", job).returncode == 0
    done = reshard(job.parent, "plan", job, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 4 == document["refused"]["exit_code"]
    assert "exists already" in document["refused"]["error"] and document["plan"]["target_bytes"] > 0


def test_a_plan_for_ranks_is_that_of_the_ranks(job):
    """One process that plans for three says what three processes say."""
    told = []
    for words, ranks in ((["plan", job, "--json", "--ranks", "3"], 1), (["plan", job, "--json"], 3)):
        done = subprocess.run(command_of(words, ranks), capture_output=True, text=True, env=environment(), cwd=job.parent, timeout=TIMEOUT_SECONDS)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        for varying in ("planned_memory_bytes", "free_bytes"):
            del document["plan"][varying]
        told.append(document)
    assert told[0] == told[1] and told[0]["ranks"] == 3
    spread = told[0]["plan"]["per_rank"]
    assert 0 < spread["written_bytes"]["min"] <= spread["written_bytes"]["mean"] <= spread["written_bytes"]["max"]


def test_json_may_stand_in_front(job):
    behind, front = (reshard(job.parent, *words) for words in (["inspect", SAMPLE, "--json"], ["--json", "inspect", SAMPLE]))
    assert front.returncode == 0 and json.loads(front.stdout) == json.loads(behind.stdout)


def test_an_unfinished_target_is_called_so(scratch):
    shutil.copytree(SAMPLE, scratch / ".next.part-0123456789abcdef")
    done = reshard(scratch, "inspect", ".next.part-0123456789abcdef", "--json")
    assert done.returncode == 3 and json.loads(done.stdout)["unfinished_target"] == str(scratch / "next")


def test_one_rank_of_several_says_it(job):
    wrapped = command_of(["digest", SAMPLE], 2, ["bash", "-c", 'if [[ $OMPI_COMM_WORLD_RANK == 0 ]]; then exec "$@" >/dev/full; fi; exec "$@"', "bash"])
    done = subprocess.run(wrapped, capture_output=True, text=True, env=environment(), timeout=TIMEOUT_SECONDS)
    assert done.returncode == RESOURCES, done.stderr
    assert done.stderr.count("stdout: cannot be written") == 1


@pytest.mark.long_but("options1")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_job_that_is_done_is_done(job, options):
    done = reshard(job.parent, "run", job, "--set", "target.path=target", *options, shell='exec "$@" >/dev/full')
    assert done.returncode == 0, done.stderr
    assert "warning: stdout: cannot be written" in done.stderr
    assert reshard(job.parent, "verify", SAMPLE, "target").returncode == 0


def test_a_reader_that_goes_is_no_error(scratch):
    done = reshard(scratch, "ls", SAMPLE, shell='"$@" | true')
    assert done.stderr == ""


def test_a_job_file_needs_a_place(scratch):
    for place in ("nowhere/job.toml", "/proc/job.toml"):
        done = reshard(scratch, "init", SAMPLE, "-o", place)
        assert done.returncode == USAGE, done.stderr
        assert "cannot be written" in own_words(done.stderr)


def test_a_source_without_optimizer_state_is_not_said_to_have_some(scratch):
    text = reshard(scratch, "init", bad_sources.original("hf")).stdout
    assert "holds what the source has" not in text
    assert "# optimizer = \"drop\"  # not needed: " in text


def checkpoints(folder):
    yield bad_sources.copy_of("flat", folder / "megatron")
    yield bad_sources.copy_of("hf", folder / "huggingface")
    for target_format in ("torch_dist", "hdf5"):
        assert reshard(folder, "init", SAMPLE, "--target-format", target_format, "-o", f"{target_format}.toml").returncode == 0
        done = reshard(folder, "run", f"{target_format}.toml", "--set", f"target.path={target_format}")
        assert done.returncode == 0, done.stderr
        yield folder / target_format


def test_no_page_is_written_into_another_checkpoint(scratch):
    for checkpoint in checkpoints(scratch):
        for place in ("x.html", "images/x.html", "images/old/x.html"):
            (checkpoint / place).parent.mkdir(exist_ok=True)
            done = reshard(scratch, "view", SAMPLE, "-o", checkpoint / place)
            assert done.returncode == USAGE, done.stderr
            assert "into which nothing is written" in own_words(done.stderr)
            assert not (checkpoint / place).exists()
    done = reshard(scratch, "view", scratch / "hdf5", "-o", "page.html")
    assert done.returncode == 0, done.stderr


def test_a_page_may_lie_beside_a_single_hdf5_file(scratch):
    (scratch / "model.h5").write_bytes(b"anything")
    done = reshard(scratch, "view", SAMPLE, "-o", scratch / "page.html")
    assert done.returncode == 0, done.stderr


def test_folders_that_may_not_be_listed_are_no_obstacle(scratch):
    if os.geteuid() == 0:
        pytest.skip("root may list every folder")
    pages = scratch / "closed" / "pages"
    pages.mkdir(parents=True)
    pages.parent.chmod(0o311)
    done = reshard(scratch, "view", SAMPLE, "-o", pages / "page.html")
    pages.parent.chmod(0o755)
    assert done.returncode == 0, done.stderr
