"""The faults, the calls that they can meet, and the exit codes that are right after each."""

from dataclasses import dataclass, field

TRANSFERS = {"read", "pread", "preadv", "write", "pwrite", "pwritev2"}
WRITES = {"write", "pwrite", "pwritev2", "ftruncate", "fsync", "fdatasync", "sync_file_range", "close", "close-written"}
CLOSES = {"close", "close-written"}
NAMES = {"mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "remove"}
NEW_NAMES = {"open-new", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2"}
OPENS = {"open", "open-new", "openat", "creat", "opendir"}
LOOKS = {"stat", "lstat", "fstat", "statx", "readdir", "flock", "posix_fadvise"}
ALL = TRANSFERS | WRITES | NAMES | OPENS | LOOKS
# What the program calls itself and can call again; the C++ library's walks through folders cannot.
REPEATED = {"open", "open-new", "pread", "preadv", "pwrite", "pwritev2", "ftruncate", "fsync", "sync_file_range"}
LOSSES = {"eio", "estale", "enospc", "edquot"}
SOURCE, TARGET, IO, RESOURCES, STALL, INTERRUPTED, KILLED = 3, 4, 5, 6, 8, 75, 137
STALL_SECONDS = 2
EARLY_CALLS = 5  # made while the job file is read, before anything watches for a stall


@dataclass
class Kind:
    shim: str
    calls: set
    codes: set
    in_source: bool = False  # whether calls that read the source are broken too
    lasting: bool = False
    hold_seconds: float = 0.0
    settings: list = field(default_factory=list)


def error(name, calls, codes, **options):
    return Kind(name, calls, {0} | codes, **options)


FAULTS = {
    "kill": Kind("kill", ALL, {KILLED}),
    "eio": error("EIO", ALL, {TARGET, IO}, in_source=True),
    "eio-lasting": error("EIO", ALL, {TARGET, IO}, lasting=True),
    "estale": error("ESTALE", ALL, {TARGET, IO}, in_source=True),
    "enospc": error("ENOSPC", WRITES | NAMES | NEW_NAMES, {RESOURCES}),
    "enospc-lasting": error("ENOSPC", WRITES | NEW_NAMES, {RESOURCES}, lasting=True),
    "edquot": error("EDQUOT", WRITES | NAMES | NEW_NAMES, {RESOURCES}),
    # Not in the source: a folder there that may not be read is left out of its stamp, and so makes another reshard.json.
    "eacces": error("EACCES", NAMES | OPENS | LOOKS, {TARGET, IO}),
    "eintr": error("EINTR", ALL - CLOSES, {TARGET, IO}, in_source=True),
    "short": Kind("short", TRANSFERS, {0}, in_source=True),
    "hold": Kind("hold", ALL - CLOSES, {STALL}, hold_seconds=STALL_SECONDS + 3.0, settings=["--set", f"run.stall_seconds={STALL_SECONDS}"]),
}


def relevant_calls(fault, calls):
    return [call for call in calls if call.function in FAULTS[fault].calls]


def right_codes(fault, call):
    """After this fault of this call."""
    if fault == "eintr" and call.function in REPEATED:
        return {0}
    codes = FAULTS[fault].codes
    if fault == "hold" and call.number <= EARLY_CALLS:
        codes = codes | {0}
    if call.function == "close-written" and fault in LOSSES and not call.path.endswith(".lock"):
        codes = codes - {0}  # what was written may be lost
    if RESOURCES in codes and call.function == "fsync":
        codes = codes | {IO}  # the target has its name, but not for sure
    if RESOURCES in codes and call.function in NAMES - NEW_NAMES:
        codes = codes | {TARGET}  # what an earlier run left cannot be removed
    # What cannot be read or found of a source counts as damage of it, as long as the job has not begun.
    return codes | {SOURCE} if call.path.startswith("source") else codes
