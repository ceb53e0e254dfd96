"""Opens the pages of `reshard view` in Chromium and uses them: drawn at all sizes, nothing fails, nothing overflows, search and keys work.

Exit code 77 (skipped) where there is no Chromium. RESHARD_VIEW_PICTURES=FOLDER keeps a screenshot of every page and size.
"""

import json
import os
import shutil
import struct
import sys
import tempfile
import unittest
from pathlib import Path

import png
import samples
from chromium import Browser, Page, find_chromium

LONG = bool(os.environ.get("RESHARD_VIEW_LONG"))  # the long tier: every size, and a page of 50,000 tensors
SIZES = [(360, 740), (390, 844), (1280, 800), (1920, 1080), (3840, 2160)] if LONG else [(360, 740), (1280, 800)]
# Elements that stick out of the window, but for those in boxes that scroll or clip.
OVERFLOWING = """[...document.body.querySelectorAll('*')].filter((node) => {
  const box = node.getBoundingClientRect();
  if (box.width === 0 || box.height === 0 || (box.right <= innerWidth + 0.5 && box.left >= -0.5)) return false;
  for (let parent = node.parentElement; parent; parent = parent.parentElement)
    if (parent !== document.body && getComputedStyle(parent).overflowX !== 'visible') return false;
  return true;
}).map((node) => `${node.tagName} ${node.className} ${node.id}`)"""


class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="reshard-view-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.browser = Browser(find_chromium())
        cls.addClassCleanup(cls.browser.close)
        cls.job = samples.megatron_job(cls.folder, 4, 1, 4)

    def setUp(self):
        self.page = Page(self.browser)
        self.addCleanup(self.page.close)

    def write(self, name, *arguments):
        """A page of `reshard view`."""
        path = self.folder / f"{name}.html"
        samples.reshard("view", *arguments, "-o", path)
        return path

    def expect_sound(self):
        self.assertEqual(self.page.faults(), [])
        self.assertIsNone(self.page.run("document.querySelector('.failure')?.textContent ?? null"))

    def text(self, selector):
        return self.page.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def look_at_all_sizes(self, name):
        for width, height in SIZES:
            for scheme in ("light", "dark"):
                with self.subTest(page=name, width=width, scheme=scheme):
                    self.page.look(width, height, scheme)
                    self.assertEqual(self.page.run(OVERFLOWING), [])
                    self.assertLessEqual(self.page.run("document.documentElement.scrollWidth"), width)
                    self.expect_picture(f"{name}-{width}-{scheme}", 400 / width, scheme)
        self.expect_sound()

    def expect_picture(self, name, scale, scheme):
        """A screenshot that is not blank, light or dark as asked for, in many colours."""
        keep = os.environ.get("RESHARD_VIEW_PICTURES")
        if keep:
            (Path(keep) / f"{name}.png").write_bytes(self.page.screenshot())
        _, _, found = png.pixels(self.page.screenshot(scale))
        self.assertGreater(len(set(found)), 60)
        colourful = sum(1 for r, g, b in found if max(r, g, b) - min(r, g, b) > 60)
        self.assertGreater(colourful, len(found) / 400)
        mean = sum(map(sum, found)) / len(found) / 3
        self.assertTrue(mean > 140 if scheme == "light" else mean < 110, f"mean brightness {mean}")


class Layouts(BrowserTest):
    def test_plan_at_all_sizes(self):
        self.page.open(self.write("plan", self.job))
        self.assertEqual(self.page.run("document.querySelectorAll('.owner').length"), 8 + 16)
        self.assertEqual(self.page.run("document.querySelectorAll('.picture canvas').length"), 2)
        self.assertGreater(self.page.run("document.querySelectorAll('.ribbon').length"), 16)
        self.look_at_all_sizes("plan")

    def test_checkpoint_at_all_sizes(self):
        self.page.open(self.write("checkpoint", samples.SAMPLE))
        self.assertEqual(self.page.run("document.querySelectorAll('.owner').length"), 8)
        self.assertEqual(self.page.run("document.querySelectorAll('.picture canvas').length"), 1)
        self.assertTrue(self.page.run("document.querySelector('#flows').hidden"))
        self.look_at_all_sizes("checkpoint")

    def set(self, selector, value, event):
        self.page.run(f"(() => {{ const box = document.querySelector({json.dumps(selector)}); box.value = {json.dumps(value)};"
                      f"box.dispatchEvent(new Event({json.dumps(event)})); }})()")
        self.page.frames()

    def search(self, query):
        self.set("#search", query, "input")
        return self.text("#found")

    def test_search_and_filters(self):
        self.page.open(self.write("plan", self.job))
        self.assertEqual(self.search(""), "51")
        self.assertEqual(self.search("Experts.GATE"), "4 of 51")
        self.assertEqual(self.search("layer.?.attn.q"), "4 of 51")
        self.assertEqual(self.search("*.linear_fc1.weight*"), "8 of 51")  # the names in the files: gate and up in four layers
        self.assertEqual(self.search("nothing at all"), "0 of 51")
        self.assertEqual(self.search("a(b[c"), "0 of 51")
        self.search("")
        self.set("#layer", "2", "change")
        self.assertEqual(self.text("#found"), "12 of 51")
        self.set("#layer", "", "change")
        self.page.click(".owner[aria-label^='tp0 pp1 ep0']")
        self.assertEqual(self.text("#found"), "26 of 51")
        self.assertFalse(self.page.run("document.querySelector('#only').hidden"))
        self.page.key("Escape")
        self.assertEqual(self.text("#found"), "51")
        self.expect_sound()

    def test_figures_of_a_job(self):
        report = self.folder / "measured.json"
        run = {"bytes_written": 2**21, "bytes_verified": 2**22, "seconds": {"copy": 2.0, "verify": 1.0}}
        report.write_text(json.dumps({"type": "result", "ranks": 2, "run": run}))
        exchanging = ["--set", "run.transport=mpi", "--ranks", "4", "--measured", report]
        self.page.open(self.write("exchanging", self.job, *exchanging))
        for part in ("between ranks", "mpirun … reshard view", "4 ranks", "busiest: rank", "copies 1.00 MiB/s, reads back 4.00 MiB/s: as ",
                     "measured with 2 ranks and 2.00 MiB"):
            self.assertIn(part, self.text("#figures"))
        self.page.open(self.write("plan", self.job))
        self.assertIn("each rank reads and writes by itself", self.text("#figures"))
        self.assertNotIn("time at", self.text("#figures"))
        self.expect_sound()

    def test_keys(self):
        self.page.open(self.write("plan", self.job), "#embed")
        self.assertEqual(self.text("#tensor-name"), "embed")
        self.page.key("/", 191, "/")
        self.assertEqual(self.page.run("document.activeElement.id"), "search")
        self.page.key("ArrowDown", 40)
        self.page.key("ArrowDown", 40)
        self.assertEqual(self.page.run("document.activeElement.id"), "rows")
        self.assertEqual(self.text("#tensor-name"), "final_norm")
        self.page.key("End", 35)
        self.assertEqual(self.text("#tensor-name"), "layer.3.experts.down")
        self.page.run("document.querySelector('.picture canvas').focus()")
        self.page.key("ArrowRight", 39)
        self.assertTrue(self.text("#tip").startswith("tp"))
        self.page.key("Enter", 13, "\r")
        self.assertFalse(self.page.run("document.querySelector('#only').hidden"))
        self.expect_sound()

    def test_pointing_tells_names_ranges_bytes_and_files(self):
        self.page.look(1280, 800)
        self.page.open(self.write("plan", self.job), "#layer.0.experts.gate")
        x, y = self.page.centre(".picture canvas")
        self.page.point(x + 20, y + 10)  # the middle lies between the fields of experts
        tip = self.text("#tip")
        for part in ("expert ", "moe_inter ", "hidden all 64", "BF16", "2.00 KiB", "as decoder.layers.0.mlp.experts.", "mp_rank_0"):
            self.assertIn(part, tip)
        self.page.point(*self.page.centre(".flowbox rect"))
        self.assertIn("go out", self.text("#tip"))
        self.page.click("#of-tensor")
        self.assertTrue(self.text("#flow-facts").startswith("32.0 KiB in 16 flows"), self.text("#flow-facts"))
        self.page.click("#as-matrix")
        self.assertEqual(self.page.run("document.querySelectorAll('#flowbox canvas').length"), 1)
        self.page.run("document.querySelector('#boxes').open = true")
        self.page.frames()
        self.assertEqual(self.page.run("document.querySelectorAll('#boxes tbody tr').length"), 16 + 32)
        self.expect_sound()

    def test_every_tensor_can_be_drawn(self):
        self.page.open(self.write("plan", self.job))
        self.page.run("document.querySelector('#rows').focus()")
        self.page.key("Home", 36)
        names = set()
        for _ in range(51):
            names.add(self.text("#tensor-name"))
            self.page.run("document.querySelector('#rows').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}))")
        self.assertEqual(len(names), 51)
        self.expect_sound()

    def test_names_stay_names(self):
        source = samples.hostile_folder(self.folder / "</title><img src=x onerror=alert(1)>".replace("/", "∕"))
        page = self.write("hostile", samples.dcp_job(self.folder, source, 2))
        self.page.open(page)
        self.assertEqual(self.page.run("[...document.querySelectorAll('.row .mono')].map((node) => node.textContent)"), samples.HOSTILE)
        for place in range(len(samples.HOSTILE)):
            self.page.click(f"#row-{place}")
            self.assertEqual(self.text("#tensor-name"), samples.HOSTILE[place])
            self.page.run("document.querySelector('#boxes').open = true")
            self.page.point(*self.page.centre(".picture canvas"))
        self.assertEqual(self.page.run("document.querySelectorAll('img, svg:not(.flowbox svg), b b, iframe').length"), 0)
        self.assertEqual(self.page.run("document.scripts.length"), 1)
        self.assertTrue(self.page.run("document.title").endswith("→ dcp · layout"))
        self.expect_sound()

    def test_no_other_script_runs(self):
        html = self.write("plan", self.job).read_text()
        page = self.folder / "other.html"
        injected = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
        page.write_text(html.replace("</body>", injected + "</body>"))
        self.page.open(page)
        self.page.frames()
        self.assertNotEqual(self.page.run("document.title"), "owned")
        self.assertTrue(any("Content Security Policy" in fault for fault in self.page.faults()))

    @unittest.skipUnless(LONG, "part of the long tier")
    def test_fifty_thousand_tensors(self):
        source = samples.large_folder(self.folder / "many", 50_000, 64)
        path = self.write("many", samples.dcp_job(self.folder, source, 8))
        seconds = self.page.open(path)
        boxes = self.page.run("document.querySelectorAll('*').length")
        print(f"50,000 tensors: page of {path.stat().st_size / 2**20:.2f} MiB, drawn after {seconds:.2f} s, {boxes} elements", file=sys.stderr)
        self.assertLess(path.stat().st_size, 4 << 20)
        self.assertLess(seconds, 30)
        self.assertLess(boxes, 2000)
        self.assertEqual(self.search("layers.49.*"), "0 of 50,000")
        self.assertEqual(self.search("*layers.49.*bias"), "333 of 50,000")
        self.page.run("document.querySelector('#rows').focus()")
        self.page.key("End", 35)
        self.assertEqual(self.text("#tensor-name"), "model.layers.49.mlp.experts.332.bias")
        self.page.look(390, 844)
        self.assertEqual(self.page.run(OVERFLOWING), [])
        self.expect_sound()

    def test_browsers_without_decompression_are_told(self):
        source = samples.large_folder(self.folder / "some", 2_000, 2)
        self.page.ask("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
        self.page.open(self.write("packed", source, "--map", "none"))
        self.assertIn("--plain", self.text(".failure"))
        self.page.open(self.write("plain", source, "--map", "none", "--plain"))
        self.assertEqual(self.text("#found"), "2,000")
        self.expect_sound()


def bf16(*values):
    """Powers of two and zero, as BF16."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


class Differences(BrowserTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        names = [f"model.layers.{layer}.{kind}.weight" for layer in range(12) for kind in ("attn", "experts.0.up", "experts.1.up")]
        cls.a = cls.folder / "a"
        cls.a.mkdir()
        samples.write_safetensors(cls.a / "model.safetensors", [("embed.weight", [8, 4]), *((name, [8, 4]) for name in names)])
        row = [1.0, 0.5, 0.25, 2.0]
        cls.b = samples.changed_copy(cls.a, cls.folder / "b", {
            "embed.weight": bf16(*row * 8),
            "model.layers.3.attn.weight": bf16(*[0] * 31, 0.125),
            "model.layers.5.experts.0.up.weight": bf16(*[0] * 28, *row),
            "model.layers.5.experts.1.up.weight": bf16(*[0] * 31, float("nan")),
            "model.layers.7.attn.weight": None,
        })

    def test_difference_at_all_sizes(self):
        self.page.open(self.write("difference", self.a, self.b))
        self.assertEqual(self.text("#summary"), "different: 5 of 37 tensors (4 by their elements, 1 missing in b), 2.2 KiB compared")
        rows = "[...document.querySelectorAll('#names div')].map((node) => node.textContent)"
        self.assertEqual(self.page.run(rows), ["embed.weight", "model.layers.*.attn.weight", "model.layers.*.experts.*.up.weight"])
        self.assertIn("missing in bmodel.layers.7.attn.weight", self.text("#headers tbody"))
        self.assertTrue(self.text("#tensors tbody tr").startswith("model.layers.5.experts.1.up.weight"))  # NaN first
        self.assertTrue(self.text("#sizes .bars").startswith("equal1,"))
        self.look_at_all_sizes("difference")

    def cell(self, column, row):
        """The middle of a cell."""
        left, top, width, height = self.page.run("(() => { const box = document.querySelector('#cells').getBoundingClientRect();"
                                                 "return [box.left, box.top, box.width, box.height]; })()")
        size = self.page.run("parseFloat(getComputedStyle(document.documentElement).fontSize)")
        head = round(size * 1.35)
        return left + (column + 0.5) * (width - 2) / 13, top + head + (row + 0.5) * (height - head - 2) / 3

    def test_cells_tell_what_differs(self):
        self.page.look(1280, 800)
        self.page.open(self.write("difference", self.a, self.b))
        self.page.point(*self.cell(4, 1))
        self.assertEqual(self.text("#tip"), "model.layers.*.attn.weight, layer 31 of 32 (3.125 %) differmax |a-b| 0.125, max rel 1")
        self.page.point(*self.cell(8, 1))
        self.assertIn("missing in b", self.text("#tip"))
        self.page.point(*self.cell(6, 2))
        self.assertIn("2 tensors5 of 64", self.text("#tip"))
        self.page.run("document.querySelector('#cells').focus()")
        for key, code in (("ArrowDown", 40), ("ArrowRight", 39), ("ArrowDown", 40)):
            self.page.key(key, code)
        self.assertEqual(self.text("#tensors-title"), "embed.weight")  # no cell lies right of it
        self.page.key("Escape")
        self.assertEqual(self.text("#tensors-title"), "4 tensors differ")
        self.expect_sound()

    def test_equal_checkpoints(self):
        self.page.open(self.write("equal", self.a, self.a))
        self.assertEqual(self.text("#summary"), "All 37 tensors are equal")
        self.assertTrue(self.page.run("document.querySelector('#tensors').hidden"))
        self.assertTrue(self.page.run("document.querySelector('#headers').hidden"))
        self.expect_sound()

    def test_names_stay_names(self):
        source = samples.hostile_folder(self.folder / "hostile")
        other = samples.changed_copy(source, self.folder / "changed", {name: bf16(*[1.0] * 32) for name in samples.HOSTILE})
        self.page.open(self.write("names", source, other))
        shown = self.page.run("[...document.querySelectorAll('#tensors td:first-child')].map((node) => node.textContent)")
        self.assertEqual(sorted(shown), sorted(samples.HOSTILE))
        self.assertEqual(self.page.run("document.querySelectorAll('img, svg, iframe').length"), 0)
        self.expect_sound()


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="reshard-view-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def test_json_and_page_hold_the_same(self):
        document = samples.reshard("view", samples.SAMPLE, "--json")
        html = samples.reshard("view", samples.SAMPLE, "-o", "-", "--plain")
        data = html.split('<script id="data" type="application/json">')[1].split("</script>")[0]
        self.assertEqual(json.loads(data), json.loads(document))
        self.assertEqual(len(json.loads(document)["tensors"]), 51)

    def test_nothing_else_is_overwritten(self):
        notes = self.folder / "notes.html"
        notes.write_text("<!doctype html>\nmine\n")
        self.assertIn("is not a page", samples.reshard("view", samples.SAMPLE, "-o", notes, code=2))
        self.assertEqual(notes.read_text(), "<!doctype html>\nmine\n")
        inside = samples.SAMPLE / "layout.html"
        self.assertIn("into which nothing is written", samples.reshard("view", samples.SAMPLE, "-o", inside, code=2))
        self.assertFalse(inside.exists())

    def test_what_makes_no_sense_is_refused(self):
        job = samples.megatron_job(self.folder, 2, 1, 1)
        page = self.folder / "x.html"
        for arguments in ([], [samples.SAMPLE], [samples.SAMPLE, "-o", "-", "--json"], [job, "--map", "llama", "-o", page],
                          [samples.SAMPLE, "--set", "target.layout.tp=1", "-o", page]):
            self.assertTrue(samples.reshard("view", *arguments, code=2).startswith("error: "))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["job.toml"])


if __name__ == "__main__":
    if find_chromium() is None:
        print("skipped: no Chromium here. Install one (Debian: apt-get install chromium), or name it in RESHARD_CHROMIUM.")
        sys.exit(77)
    unittest.main()
