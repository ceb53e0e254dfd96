"""Where one test works."""

import os
import stat

from checkpoints import job_text


class Place:
    """A folder of one test with a source, job files and a program whose writes can be slowed down."""

    def __init__(self, folder, source):
        self.folder = folder
        self.source = source
        self.target = folder / "target"
        self.job = self.write_job("job.toml", self.target)
        self.program = self.slowed_program()
        self.environment = {"RESHARD_BIN": str(self.program)}

    def write_job(self, name, target, **run):
        path = self.folder / name
        path.write_text(job_text(self.source, target, **run))
        return path

    def slowed_program(self):
        """A script, so that only the program and not Slurm's own programs get the shim."""
        path = self.folder / "reshard"
        exports = f"LD_PRELOAD={os.environ['RESHARD_DELAY_SHIM']} RESHARD_DELAY_PATH=.part- RESHARD_DELAY_FILE={self.folder}/delay"
        exports += f" RESHARD_DELAY_LOG={self.folder}/writes"
        path.write_text(f"#!/bin/sh\nexec env {exports} {os.environ['RESHARD_BIN']} \"$@\"\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def delay(self, milliseconds):
        """Every write of the program waits for so long, from now on."""
        new = self.folder / "delay.new"
        new.write_text(str(milliseconds))
        new.rename(self.folder / "delay")

    def written(self):
        """Bytes that all attempts together wrote into the staging folder."""
        return sum(map(int, (self.folder / "writes").read_text().split()))

    def has_begun(self):
        """Whether there is a staging folder."""
        return any(self.target.parent.glob(f".{self.target.name}.part-*"))
