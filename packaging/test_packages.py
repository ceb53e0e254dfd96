#!/usr/bin/env python3
"""Checks what packaging/make_packages.sh makes besides the program: recipes, bill of materials, checksums.

packaging/test_packages.py RESHARD [--tools]     RESHARD: a program, whose build facts are used. --tools: also with PyPI's tools in a new environment (the
schema of CycloneDX, EasyBuild's own recipes, YAML); exit code 77 if PyPI is not reached."""

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ""
TOOLS = ["cyclonedx-python-lib[json-validation]==11.12.0", "easybuild==5.4.1", "jinja2", "mypy", "pyyaml"]


def done(*words, **settings):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, **settings).stdout


def table():
    lines = [line.split("\t") for line in (ROOT / "packaging/libraries.tsv").read_text(encoding="utf-8").splitlines()]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


class Made(unittest.TestCase):
    """With a release whose archive is a few bytes."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = Path(cls.folder.name)
        version = json.loads(done(PROGRAM, "--version", "--json"))["version"]
        cls.archive = cls.out / f"reshard-{version}.tar.gz"
        cls.archive.write_bytes(b"not a real archive")
        cls.sum = hashlib.sha256(b"not a real archive").hexdigest()
        settings = {"env": {**os.environ, "RESHARD_BIN": PROGRAM}}
        done(ROOT / "packaging/make_packages.sh", "--out", cls.out, "--url", "https://example.org/r.tar.gz", "recipes", "facts", "sums", **settings)
        cls.bill = json.loads((cls.out / f"reshard-{version}.cdx.json").read_text())
        cls.facts = json.loads((cls.out / "build.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def text(self, pattern):
        (found,) = self.out.glob(pattern)
        return found.read_text(encoding="utf-8")

    def easyconfig(self):
        content = {"SYSTEM": "SYSTEM"}
        exec(compile(self.text("easybuild/reshard-*.eb"), "easyconfig", "exec"), content)
        return content


class Recipes(Made):
    def test_nothing_is_left_to_fill_in_and_all_name_the_archive(self):
        made = [path for path in self.out.rglob("*") if path.is_file() and path.parent != self.out]
        self.assertEqual(len(made), 10)
        for path in made:
            self.assertNotRegex(path.read_text(), r"@[A-Z][A-Z0-9_]*@", path)
            if path.name not in ("build.sh", "repo.yaml") and not path.name.startswith("simdjson"):
                self.assertIn(self.sum, path.read_text(), path)
        self.assertIn("https://example.org/r.tar.gz", self.text("spack/**/package.py"))
        compile(self.text("spack/**/package.py"), "package.py", "exec")
        done("bash", "-n", self.out / "conda/build.sh")

    def test_container_files_install_what_the_build_needs_and_copy_what_is_there(self):
        for name, install, column in (("debian", "apt-get install", "debian"), ("ubuntu", "apt-get install", "debian"), ("rocky", "dnf install", "rhel")):
            text = self.text(f"containers/Containerfile.{name}")
            lines = [line for line in text.splitlines() if line and not line.startswith("#")]
            for line in lines:
                self.assertIn(line.split()[0], {"FROM", "COPY", "RUN", "ENV", "CMD"}, line)
            self.assertEqual(sum(line.startswith("FROM ") for line in lines), 2)
            installed = " ".join(line for line in lines if install in line).split()
            for row in table():
                for package in row[column].replace("-", "", row[column] == "-").split():
                    self.assertIn(package, installed, name)
            self.assertIn(f"COPY {self.archive.name} /source.tar.gz", lines)
            self.assertIn("mpi", text.lower())

    def test_the_easyconfig_has_what_the_table_names(self):
        content = self.easyconfig()
        named = {one[0] for one in content["dependencies"] + content["builddependencies"]}
        self.assertEqual(named, {row["easybuild"] for row in table()} - {"-"})
        self.assertEqual(content["checksums"], [self.sum])

    def test_debian_packages_are_those_that_the_build_installs(self):
        script = (ROOT / "scripts/install_packages.sh").read_text(encoding="utf-8")
        for variable, column in (("packages", "debian"), ("rhel", "rhel")):
            listed = re.search(rf"^{variable}=\((.*?)\)", script, re.S | re.M).group(1).split()
            self.assertEqual(sorted(listed), sorted(" ".join(row[column] for row in table() if row[column] != "-").split()))

    def test_the_table_has_all_that_the_build_looks_for(self):
        looked_for = (ROOT / "cmake/dependencies.cmake").read_text(encoding="utf-8")
        found = set(re.findall(r"find_package\((\w+)", looked_for)) | set(re.findall(r"pkg_check_modules\(\w+ (?:REQUIRED )?IMPORTED_TARGET ([\w.-]+)", looked_for))
        self.assertEqual(found - {"Threads", "benchmark"} | {"nccl.h"}, {row["found_as"] for row in table()} - {"-"})


class Bill(Made):
    def test_has_every_library_with_version_and_licence(self):
        libraries = {one["name"]: one for one in self.bill["components"] if one["type"] == "library"}
        self.assertEqual(set(libraries), set(self.facts["libraries"]) | {"openmpi"} if "Open MPI" in self.facts["mpi"] else libraries)
        for name, version in self.facts["libraries"].items():
            self.assertEqual(libraries[name]["version"], version)
        for library in libraries.values():
            self.assertTrue(library["licenses"][0]["license"])
            self.assertRegex(library["version"], r"\d")
        self.assertEqual(set(self.bill["dependencies"][0]["dependsOn"]), {one["bom-ref"] for one in libraries.values()})

    def test_has_the_facts_of_the_build(self):
        said = {one["name"]: one["value"] for one in self.bill["metadata"]["component"]["properties"]}
        for key in ("commit", "compiler", "flags", "mpi", "hdf5", "cuda"):
            self.assertEqual(said[f"reshard:{key}"], self.facts[key])

    def test_hashes_are_those_of_the_files(self):
        files = {one["name"]: one["hashes"][0]["content"] for one in self.bill["components"] if one["type"] == "file"}
        self.assertEqual(files, {self.archive.name: self.sum})
        done("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=self.out)
        listed = {line.split("  ", 1)[1] for line in (self.out / "SHA256SUMS").read_text().splitlines()}
        self.assertEqual(listed, {str(path.relative_to(self.out)) for path in self.out.rglob("*") if path.is_file()} - {"SHA256SUMS"})

    def test_the_same_build_has_the_same_number_and_another_one_another(self):
        def number(facts):
            path = self.out / "changed.json"
            path.write_text(json.dumps(facts))
            done(ROOT / "packaging/make_sbom.py", "--facts", path, "--out", self.out / "changed.cdx", self.archive)
            path.unlink()
            text = (self.out / "changed.cdx").read_text()
            (self.out / "changed.cdx").unlink()
            return json.loads(text)["serialNumber"]

        other = copy.deepcopy(self.facts)
        other["libraries"]["fmt"] = "0.1"
        self.assertEqual(number(self.facts), self.bill["serialNumber"])
        self.assertNotEqual(number(other), self.bill["serialNumber"])
        other["libraries"]["nowhere"] = "1.0"
        with self.assertRaises(subprocess.CalledProcessError):
            number(other)


class WithTools(Made):
    """What PyPI's tools say. EasyBuild brings its recipes, so that versions are compared with those that it has."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.environment = tempfile.TemporaryDirectory()
        done(sys.executable, "-m", "venv", cls.environment.name)
        cls.python = Path(cls.environment.name, "bin/python")
        if subprocess.run([cls.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS], capture_output=True, check=False).returncode != 0:
            print("test_packages: skipped: pip cannot install the tools")
            os._exit(77)

    @classmethod
    def tearDownClass(cls):
        cls.environment.cleanup()
        super().tearDownClass()

    def test_the_bill_is_valid(self):
        check = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)
"""
        (path,) = self.out.glob("*.cdx.json")
        done(self.python, "-c", check, path)
        path = self.out / "broken.cdx.json"
        path.write_text(json.dumps({**self.bill, "components": [{"type": "libary", "name": "x"}]}))
        self.assertNotEqual(subprocess.run([self.python, "-c", check, path], capture_output=True, check=False).returncode, 0)

    def test_the_python_module_has_its_types(self):
        words = ["--strict", "--ignore-missing-imports", "--cache-dir", self.out / ".mypy", "reshard"]
        done(self.python, "-m", "mypy", *words, cwd=ROOT / "packaging/python")

    def test_conda_s_recipe_is_yaml_with_the_packages_of_the_table(self):
        check = """
import json, sys, yaml, jinja2
text = jinja2.Template(open(sys.argv[1]).read()).render(compiler=lambda language: language + "-compiler")
print(json.dumps(yaml.safe_load(text)))
"""
        recipe = json.loads(done(self.python, "-c", check, self.out / "conda/meta.yaml"))
        needed = recipe["requirements"]["build"] + recipe["requirements"]["host"]
        for row in table():
            if row["conda"] not in ("-", "{{ compiler('cxx') }}"):
                self.assertIn(row["conda"], needed)
        self.assertIn("cxx-compiler", needed)
        self.assertEqual(recipe["source"]["sha256"], self.sum)

    def test_easybuild_has_each_dependency_in_this_version(self):
        content = self.easyconfig()
        toolchain = content["toolchain"]["version"]
        (recipes,) = Path(self.environment.name).glob("**/easybuild/easyconfigs/f")
        read = """
import sys
from importlib import import_module
from easybuild.tools.options import set_up_configuration
set_up_configuration(args=["--quiet", "--allow-use-as-root-and-accept-consequences"], silent=True)
from easybuild.framework.easyconfig.default import DEFAULT_CONFIG
from easybuild.framework.easyconfig.parser import EasyConfigParser
for path in sys.argv[1:]:
    content = EasyConfigParser(path).get_config_dict()
    block = getattr(import_module("easybuild.easyblocks.generic." + content["easyblock"].lower()), content["easyblock"])
    unknown = set(content) - set(DEFAULT_CONFIG) - set(block.extra_options())
    sys.exit(f"{path}: EasyBuild does not know {unknown}") if unknown else print(content["name"])
"""
        there = {**os.environ, "HOME": str(self.out), "PATH": f"{self.python.parent}:{os.environ['PATH']}"}
        self.assertEqual(set(done(self.python, "-c", read, *self.out.glob("easybuild/*.eb"), env=there).split()), {"reshard", "simdjson"})
        compiler = done("grep", "-hoE", r"gccver = '[0-9.]+'", recipes.parent / f"g/gompi/gompi-{toolchain}.eb").split("'")[1]
        for name, version, *_ in content["dependencies"] + content["builddependencies"]:
            if list(self.out.glob(f"easybuild/{name}-{version}-GCCcore-{compiler}.eb")):
                continue
            folder = recipes.parent / name[0].lower() / name
            there = {path.name for path in folder.glob(f"{name}-{version}*.eb")}
            wanted = {f"{name}-{version}-GCCcore-{compiler}.eb", f"{name}-{version}-gompi-{toolchain}.eb", f"{name}-{version}-GCC-{compiler}.eb", f"{name}-{version}.eb"}
            self.assertTrue(there & wanted, f"{name} {version}: EasyBuild has {sorted(path.name for path in folder.glob('*.eb'))[-6:]}")


if __name__ == "__main__":
    PROGRAM = str(Path(sys.argv[1]).resolve())
    cases = [Recipes, Bill] + ([WithTools] if "--tools" in sys.argv else [])
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
