#!/usr/bin/env python3
"""Writes a bill of materials as CycloneDX 1.5 (JSON), from what the program says of itself and the files that were made.

packaging/make_sbom.py --facts VERSION.json --out reshard-0.2.0.cdx.json FILE…
VERSION.json is what `reshard --version --json` prints. Licences are those of packaging/libraries.tsv."""

import argparse
import hashlib
import json
import re
import subprocess
import uuid
from pathlib import Path

LIBRARIES = Path(__file__).resolve().parent / "libraries.tsv"


def table():
    lines = [line.split("\t") for line in LIBRARIES.read_text(encoding="utf-8").splitlines()]
    return {line[0]: dict(zip(lines[0], line)) for line in lines[1:]}


def licence(text):
    """A licence of the SPDX list by its id, another one by its name."""
    return {"license": {"name" if " " in text else "id": text}}


def debian_purl(packages):
    """The package of Debian or Ubuntu that the machine has, as a package URL; nothing where it has none."""
    for package in packages.split():
        try:
            asked = subprocess.run(["dpkg-query", "-W", "-f=${Version} ${Architecture}", package], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        if asked.returncode == 0 and asked.stdout.strip():
            version, architecture = asked.stdout.split()
            return f"pkg:deb/debian/{package}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"
    return None


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def bill(facts, files):
    known = table()
    versions = dict(facts["libraries"])
    found = re.search(r"Open MPI v([0-9][^, ]*)", facts["mpi"])
    versions["mpi"] = found.group(1) if found else "unknown"
    components = []
    for name, version in sorted(versions.items()):
        if name not in known:
            raise SystemExit(f"make_sbom: {name} of --version --json is not in {LIBRARIES}. Add its row.")
        row = known[name]
        component = {"type": "library", "bom-ref": name, "name": "openmpi" if name == "mpi" else name, "version": version, "licenses": [licence(row["licence"])]}
        purl = debian_purl(row["debian"])
        if purl:
            component["purl"] = purl
        components.append(component)
    for path in files:
        components.append({"type": "file", "bom-ref": path.name, "name": path.name, "hashes": [{"alg": "SHA-256", "content": sha256(path)}]})
    facts_of_build = {key: facts[key] for key in ("commit", "build_type", "compiler", "flags", "built_for", "built_with", "mpi", "hdf5", "cuda")}
    own = {
        "type": "application",
        "bom-ref": "reshard",
        "name": "reshard",
        "version": facts["version"],
        "licenses": [licence("Apache-2.0")],
        "properties": [{"name": f"reshard:{key}", "value": value} for key, value in facts_of_build.items()],
    }
    content = json.dumps([own, components], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",  # the same content has the same number
        "version": 1,
        "metadata": {"timestamp": f"{facts['date']}T00:00:00Z", "component": own},
        "components": components,
        "dependencies": [{"ref": "reshard", "dependsOn": sorted(versions)}],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("files", type=Path, nargs="*")
    chosen = parser.parse_args()
    facts = json.loads(chosen.facts.read_text(encoding="utf-8"))
    chosen.out.write_text(json.dumps(bill(facts, sorted(chosen.files, key=lambda path: path.name)), indent=2) + "\n", encoding="utf-8")


main()
