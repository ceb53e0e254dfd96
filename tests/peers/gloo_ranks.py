"""Runs a function on every rank of a world of CPU processes that are joined by gloo."""

import atexit
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

import warm

# What torch says when its processes did not find or lost each other, which a busy machine alone can cause. No word of it comes from the functions.
LOST_EACH_OTHER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "connectFullMesh failed", "Timed out waiting", "Socket Timeout")
STARTS = 3
SECONDS = 240  # for one start


def run_ranks(function, world, arguments, preload):
    """Calls function(rank, *arguments) in `world` processes and returns the results by rank.

    They are forked from the warm Python of the tests (warm.py), or from one that has imported the module `preload`: starting every rank from scratch would
    cost seconds of CPU each. Processes that lost each other are started again, so a function must be able to run twice.
    """
    for start in range(1, STARTS + 1):
        with tempfile.TemporaryDirectory() as folder:
            errors = run_once(folder, world, function, arguments, preload)
            if not errors:
                return [torch.load(f"{folder}/result{rank}", weights_only=False) for rank in range(world)]
        mattering = [error for error in errors if not any(words in error for words in LOST_EACH_OTHER)]
        if mattering or start == STARTS:
            raise RuntimeError("rank failed:\n" + (mattering or errors)[0])
        print(f"start {start} of {world} ranks: they lost each other\n{errors[0]}", file=sys.stderr)


def run_once(folder, world, function, arguments, preload):
    """What went wrong on ranks that came to no result."""
    with open(f"{folder}/call", "wb") as file:
        pickle.dump((function, arguments), file)
    processes = [start_rank([__file__, folder, str(rank), str(world)], preload) for rank in range(world)]
    end = time.monotonic() + SECONDS
    codes = []
    for process in processes:
        codes.append(process.wait(max(end - time.monotonic(), 0.001)))
        process.kill()
    folder = Path(folder)
    missing = [rank for rank in range(world) if not (folder / f"result{rank}").exists()]
    said = {rank: folder / f"error{rank}" for rank in missing}
    return [
        path.read_text() if path.exists() else f"rank {rank} of {world} came to no result in {SECONDS} s and ended with {codes[rank]}"
        for rank, path in said.items()]


def start_rank(arguments, preload):
    try:
        return warm.Process(os.environ.get(warm.VARIABLE), arguments)
    except OSError:
        return warm.Process(warm_python_of_this_process(preload), arguments)


@cache
def warm_python_of_this_process(preload):
    folder = tempfile.mkdtemp(prefix="reshard-warm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = f"{folder}/socket"
    warm.start(path, preload, os.getpid())
    atexit.register(warm.stop, path)
    return path


def rank_main(folder, rank, world):
    try:
        with open(f"{folder}/call", "rb") as file:
            function, arguments = pickle.load(file)
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
        result = function(rank, *arguments)
        dist.barrier()  # nobody leaves while others still talk
    except BaseException:
        Path(f"{folder}/error{rank}").write_text(traceback.format_exc())
        os._exit(1)  # peers waiting in a collective notice the closed connection at once
    torch.save(result, f"{folder}/result.part{rank}")
    os.replace(f"{folder}/result.part{rank}", f"{folder}/result{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
