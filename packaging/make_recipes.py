#!/usr/bin/env python3
"""Writes the recipes of a release: container files for Debian, Ubuntu and Rocky Linux, Apptainer, Spack, EasyBuild and conda.

packaging/make_recipes.py --source reshard-0.2.0.tar.gz [--url URL] --out FOLDER
They build the archive SOURCE, whose SHA-256 they name, from URL (default: the file itself). What they need is in packaging/libraries.tsv; the texts are
in packaging/recipes. For each `@NAME@` in a text, a value of `values()` is put in."""

import argparse
import hashlib
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The EasyBuild toolchain, and the versions that EasyBuild's own recipes have in it.
TOOLCHAIN = "gompi-2024a"
EASYBUILD = {
    "CLI11": "2.5.0", "fmt": "11.0.2", "HDF5": "1.14.5", "ISA-L": "2.31.0", "libyaml": "0.2.5", "simdjson": "3.10.1", "spdlog": "1.15.3",
    "tomlplusplus": "3.4.0", "xxHash": "0.8.3", "zlib": "1.3.1", "CMake": "3.29.3", "Ninja": "1.12.1", "pkgconf": "2.2.0",
}  # fmt: skip
OWN_EASYCONFIGS = {"simdjson"}  # EasyBuild has none: packaging/recipes has them
PLACES = {
    "Containerfile.debian": "containers/Containerfile.debian",
    "Containerfile.ubuntu": "containers/Containerfile.ubuntu",
    "Containerfile.rocky": "containers/Containerfile.rocky",
    "reshard.def": "containers/reshard.def",
    "easyconfig.eb": f"easybuild/reshard-@VERSION@-{TOOLCHAIN}.eb",
    "simdjson.eb": f"easybuild/simdjson-{EASYBUILD['simdjson']}-GCCcore-13.3.0.eb",
    "meta.yaml": "conda/meta.yaml",
    "build.sh": "conda/build.sh",
}
SPACK = HERE / "spack/spack_repo/reshard"


def column(name):
    lines = [line.split("\t") for line in (HERE / "libraries.tsv").read_text(encoding="utf-8").splitlines()]
    at = lines[0].index(name)
    return {line[0]: line[at] for line in lines[1:] if line[at] != "-"}


def values(source, url):
    project = (HERE.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    version = re.search(r"project\(reshard VERSION ([0-9.]+)", project).group(1)
    conda, easybuild = column("conda"), column("easybuild")
    tools = ("compiler", "cmake", "ninja", "pkg-config")
    return {
        "VERSION": version,
        "SHA256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "ARCHIVE": source.name,
        "URL": url or source.resolve().as_uri(),
        "DEBIAN": " ".join(column("debian").values()),
        "RHEL": " ".join(column("rhel").values()),
        "SIMDJSON": EASYBUILD["simdjson"],
        "TOOLCHAIN": TOOLCHAIN.split("-")[1],
        "CONDA_BUILD": "\n".join(f'    - "{conda[name]}"' for name in tools),
        "CONDA_HOST": "\n".join(f'    - "{one}"' for name, one in conda.items() if name not in tools),
        "EASYBUILD_TOOLS": "\n".join(f"    ('{one}', '{EASYBUILD[one]}')," for name, one in easybuild.items() if name in tools),
        "EASYBUILD_LIBRARIES": "\n".join(
            "    ('OpenSSL', '3', '', SYSTEM)," if one == "OpenSSL" else f"    ('{one}', '{EASYBUILD[one]}')," for name, one in easybuild.items() if name not in tools
        ),
    }


def filled(text, known):
    return re.sub(r"@([A-Z0-9_]+)@", lambda found: known[found.group(1)], text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--url")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    known = values(chosen.source, chosen.url)
    for name, place in PLACES.items():
        path = chosen.out / filled(place, known)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled((HERE / "recipes" / name).read_text(encoding="utf-8"), known), encoding="utf-8")
    for path in sorted(SPACK.rglob("*")):
        if path.suffix not in (".py", ".yaml"):
            continue
        text = path.read_text(encoding="utf-8")
        text = text.replace(f'version("{known["VERSION"]}")', f'version("{known["VERSION"]}", sha256="{known["SHA256"]}", url="{known["URL"]}")')
        to = chosen.out / "spack" / SPACK.name / path.relative_to(SPACK)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")


main()
