"""Runs a function on every rank of a world of CPU processes that are joined by gloo."""

import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

# What torch says when its processes did not find or lost each other, which a busy machine alone can cause. No word of it comes from the functions.
LOST_EACH_OTHER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "connectFullMesh failed", "Timed out waiting", "Socket Timeout")
STARTS = 3
SECONDS = 240  # for one start


def run_ranks(function, world, arguments, preload):
    """Calls function(rank, *arguments) in `world` processes and returns the results by rank.

    The fork server imports the module `preload` once; starting every rank from scratch would cost seconds of CPU each. Processes that lost each
    other are started again, so a function must be able to run twice.
    """
    # The fork server finds our modules only through the environment (Python 3.11 does not hand it sys.path).
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    for start in range(1, STARTS + 1):
        with tempfile.TemporaryDirectory() as folder:
            errors = run_once(context, folder, world, function, arguments)
            if not errors:
                return [torch.load(f"{folder}/result{rank}", weights_only=False) for rank in range(world)]
        mattering = [error for error in errors if not any(words in error for words in LOST_EACH_OTHER)]
        if mattering or start == STARTS:
            raise RuntimeError("rank failed:\n" + (mattering or errors)[0])
        print(f"start {start} of {world} ranks: they lost each other\n{errors[0]}", file=sys.stderr)


def run_once(context, folder, world, function, arguments):
    """What went wrong on ranks that came to no result."""
    processes = [context.Process(target=rank_main, args=(folder, rank, world, function, arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    folder = Path(folder)
    missing = [rank for rank in range(world) if not (folder / f"result{rank}").exists()]
    said = {rank: folder / f"error{rank}" for rank in missing}
    return [
        path.read_text() if path.exists() else f"rank {rank} of {world} came to no result in {SECONDS} s and ended with {processes[rank].exitcode}"
        for rank, path in said.items()]


def rank_main(folder, rank, world, function, arguments):
    try:
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
