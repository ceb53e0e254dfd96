"""Makes tests/data/deepspeed.tar.xz: a Llama of two layers after two steps of DeepSpeed on two CPU ranks, saved in ZeRO stages 2 and 3.

    python tests/data/make_deepspeed_sample.py made
    tar -C made --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cJf tests/data/deepspeed.tar.xz .
"""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))

import deepspeed_runs as runs  # noqa: E402


def main(there):
    shutil.rmtree(there, ignore_errors=True)
    cases = {name: {"stage": stage, "model": "llama", "folder": str(there / name)} for name, stage in (("zero2", 2), ("zero3", 3))}
    runs.save(2, cases)
    for name in cases:
        runs.llama_config().save_pretrained(there / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
