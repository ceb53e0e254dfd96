"""The pages of docs/ become a site (packaging/site): each is in its contents, and no link leads nowhere."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_page_has_a_place_in_the_site(tmp_path):
    staged = tmp_path / "pages"
    made = subprocess.run([sys.executable, REPOSITORY / "packaging/site/stage.py", staged], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    index = (staged / "index.md").read_text()
    assert "recipes/to-vllm\n" in index and "(../" not in index
    assert (staged / "repository/slurm.md").exists()
