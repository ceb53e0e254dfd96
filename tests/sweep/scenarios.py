"""What the sweep disturbs: for each scenario how it begins, its command, which states may be found afterwards, and how it must end."""

import shutil
from pathlib import Path

from checkpoints import contents, make_checkpoint, make_neighbours, part_of, top
from place import Fault, Place

TARGET = "next"
JOB = """[source]
path = "{source}"
[target]
path = "{target}"
format = "huggingface"
shard_bytes = "250 KB"
replace = {replace}
[model]
map = "none"
[run]
memory = "1 MiB"
progress_seconds = 0
"""
NIGHTLY = "[nightly]\nkeep = 1\nsettle_seconds = 0\n"
REFUSED = 4  # the target is there already


class Scenario:
    """A run to a name that is free."""

    name = "publication"
    replace = False
    always = ""

    def __init__(self, world):
        self.world = world
        self.neighbours = contents(world.folder / "neighbours")

    def prepare(self, place):
        place.clear()
        shutil.copytree(self.world.folder / "neighbours", place.out, dirs_exist_ok=True)
        self.write_job(place, self.world.new)
        self.begin(place)

    def begin(self, place):
        """What else is there before the command."""

    def write_job(self, place, source):
        text = JOB.format(source=source, target=f"out/{TARGET}", replace=str(self.replace).lower())
        (place.folder / "job.toml").write_text(text)

    def command(self):
        return ["run", "job.toml"]

    again = command

    def learn(self, place, rank=0):
        """From an undisturbed command: the calls of a rank, and the end that every disturbed one must come to."""
        self.prepare(place)
        self.before = contents(place.out)
        outcome = place.run(self.command(), Fault(rank=rank))
        assert outcome.code == 0, f"{self.name}: {outcome.said}"
        self.final = contents(place.out)
        self.new = part_of(self.final, TARGET)
        return place.calls()[0]

    def is_done(self, found):
        """Whether the command has published what it was to."""
        return part_of(found, TARGET) == self.new

    def targets(self):
        """The names that the command may change, hidden ones with them, each with its allowed states."""
        return {TARGET: [part_of(self.before, TARGET), self.new]}

    def problem_of_state(self, found):
        allowed = self.targets()
        for name, states in allowed.items():
            if part_of(found, name) not in states:
                return f"{name} is neither absent nor a whole checkpoint that may be there"
        for name in {top(path) for path in self.neighbours}:
            if part_of(found, name) != part_of(self.before, name):
                return f"{name}, of another job, has changed"
        own = (*allowed, *(f".{name}." for name in allowed))
        strange = [path for path in found if top(path) not in allowed and path not in self.before and not path.startswith(own)]
        return f"{strange[0]} was made, whose name is not the job's" if strange else None

    def codes_of_again(self, found):
        return {0} if self.replace or not self.is_done(found) else {REFUSED}

    def clean(self):
        return ["clean", f"out/{TARGET}"]


class Replace(Scenario):
    name = "replace"
    replace = True

    def begin(self, place):
        shutil.copytree(self.world.old_target(), place.out / TARGET)


class ReplaceByTwoRenames(Replace):
    """On a file system that cannot exchange two names: for a moment there is none, and the old one is whole under a hidden name."""

    name = "replace-two-renames"
    always = "renameat2=EINVAL"

    def targets(self):
        return {TARGET: [part_of(self.before, TARGET), self.new, {}]}

    def problem_of_state(self, found):
        problem = super().problem_of_state(found)
        if problem or part_of(found, TARGET):
            return problem
        old = {path.removeprefix(TARGET): value for path, value in part_of(self.before, TARGET).items()}
        hidden = [name for name in {top(path) for path in found} if name.startswith(f".{TARGET}.")]
        whole = any({path.removeprefix(name): value for path, value in part_of(found, name).items()} == old for name in hidden)
        return None if whole else "no target, and the old one is not whole under any hidden name"


class Resume(Scenario):
    """A run behind one that was killed with half of its rounds done."""

    name = "resume"

    def begin(self, place):
        interrupt(place, self.command())


class Clean(Resume):
    name = "clean"

    def command(self):
        return ["clean", f"out/{TARGET}"]

    again = command

    def begin(self, place):
        interrupt(place, ["run", "job.toml"])

    def codes_of_again(self, found):
        return {0}


class Nightly(Scenario):
    """A night that converts a checkpoint, removes a surplus one, and what an interrupted night left of a third."""

    name = "nightly"

    def prepare(self, place):
        place.clear()
        shutil.copytree(self.world.nights(), place.out, dirs_exist_ok=True)
        self.write_job(place, self.world.training)

    def write_job(self, place, source):
        (place.folder / "job.toml").write_text(JOB.format(source=source, target="out", replace="false") + NIGHTLY)

    def command(self):
        return ["nightly", "job.toml"]

    again = command

    def targets(self):
        return {name: [part_of(self.before, name), part_of(self.final, name)] for name in ("iter_0000001", "iter_0000002", "iter_0000000")}

    def is_done(self, found):
        return part_of(found, "iter_0000002") == part_of(self.final, "iter_0000002")

    def problem_of_state(self, found):
        if not part_of(found, "iter_0000001") and not part_of(found, "iter_0000002"):
            return "the last target was removed before there was another one"
        return super().problem_of_state(found)

    def codes_of_again(self, found):
        return {0}


def interrupt(place, command):
    """Leaves what a kill leaves in the middle of the bytes: some rounds are in the journal, some are not."""
    watch_source, place.watch_source = place.watch_source, False
    ranks, place.ranks = place.ranks, 1
    if not hasattr(place, "middle"):
        folder = Place(place.folder.with_name(place.folder.name + "-middle"), place.source)
        shutil.copytree(place.folder, folder.folder)
        assert folder.run(command, Fault()).code == 0
        writes = [call.number for call in folder.calls()[0] if call.function == "pwritev2"]
        place.middle = writes[len(writes) // 2]
        shutil.rmtree(folder.folder)
    assert place.run(command, Fault("kill", place.middle)).code == 137
    place.watch_source, place.ranks = watch_source, ranks


class World:
    """Sources and earlier results, made once and copied for every point."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.new = make_checkpoint(self.folder / "source" / "new", 1)
        self.old = make_checkpoint(self.folder / "source" / "old", 2)
        self.training = self.folder / "source" / "training"
        self.nights_made = None
        make_neighbours(self.folder / "neighbours")
        self.source_before = contents(self.folder / "source")

    def source_is_unchanged(self):
        return contents(self.folder / "source") == self.source_before

    def old_target(self):
        """What an earlier run made of another source."""
        made = self.folder / "earlier" / "out" / TARGET
        if not made.exists():
            place = Place(made.parents[1], self.folder / "source")
            place.clear()
            Scenario(self).write_job(place, self.old)
            outcome = place.run(["run", "job.toml"])
            assert outcome.code == 0, outcome.said
        return made

    def nights(self):
        """A folder of targets after two nights; the checkpoint of the second, which was killed, is gone."""
        place = Place(self.folder / "nights", self.folder / "source")
        if self.nights_made:
            return self.nights_made
        place.clear()
        shutil.copytree(self.folder / "neighbours", place.out, dirs_exist_ok=True)
        night = Nightly(self)
        night.write_job(place, self.training)
        make_checkpoint(self.training / "iter_0000000", 3)
        interrupt(place, night.command())
        shutil.rmtree(self.training / "iter_0000000")
        make_checkpoint(self.training / "iter_0000001", 2)
        held = place.folder / "held"
        held.mkdir()
        left = [path for path in place.out.iterdir() if path.name.startswith(".iter_")]
        for path in left:
            path.rename(held / path.name)
        outcome = place.run(night.command())
        assert outcome.code == 0, outcome.said
        for path in left:
            (held / path.name).rename(path)
        make_checkpoint(self.training / "iter_0000002", 1)
        self.source_before = contents(self.folder / "source")
        self.nights_made = place.out
        return self.nights_made


SCENARIOS = {one.name: one for one in (Scenario, Replace, ReplaceByTwoRenames, Resume, Clean, Nightly)}
