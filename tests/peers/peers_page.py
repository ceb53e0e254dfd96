"""Writes docs/peers.md from what the tests assert of programs in their newest releases: python tests/peers/peers_page.py"""

from pathlib import Path

import bridge_families
import mcore_bridge_families
import test_trainer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "peers.md"
RELEASES = Path(__file__).resolve().parent / "releases.txt"
HEAD = """# Programs that the tests run

Which releases run beside this program, in which direction, and what comes of it. The tests in `tests/peers` assert each row; `tests/peers/peers_page.py`
writes this page. Beside `requirements.txt` (Megatron-Core 0.16.1, torch, transformers, DeepSpeed, ModelOpt, compressed-tensors, peft), which all tests
use, `scripts/install_peers.sh RELEASE` installs what `tests/peers/releases.txt` names:

{releases}

All of them run on CPUs. What needs CUDA is replaced: names of `torch.cuda`, compiled kernels, and for Megatron-Bridge and mcore-bridge Transformer Engine
(`tests/peers/te_package.py`, which has its parameters and states by name and shape). Names of objects that only the real Transformer Engine has are
therefore not proved.

"""


def table(head, rows):
    lines = [head, ["---"] * len(head), *sorted(rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def rows_of(cases):
    return [(name, source.layout.label(), f"{form}, {target.layout.label()}", "weights and the next step are the same")
            for name, (source, form, target) in cases.items()]


def trainer_section():
    others = "`, `".join(test_trainer.ACROSS)
    head = ["case", "saved as", "converted into", "result"]
    refused = [(name, form, f"refused: “… {words} …”") for name, (_, form, words) in test_trainer.REFUSED.items()]
    own = [(name, "it does not save this run", f"`{words}`") for name, (_, words) in test_trainer.NOT_SAVED.items()]
    own += [(name, "it does not load what it saved", f"`{words}`") for name, (_, words) in test_trainer.NOT_LOADED.items()]
    old = [(name, world.layout.label(), f"{form}, {target.layout.label()}", "the next step is the same")
           for name, (world, _, form, target) in test_trainer.WITHOUT_TRAINER.items()]
    return ("## The trainer of Megatron-Core 0.17.1, 0.18.2 and 0.19.2\n\n`megatron.training` with its own parser, wrappers, optimizers, `save_checkpoint` "
            "and `load_checkpoint --dist-ckpt-strictness raise_all`, and since 0.19 its own model builder, which older wheels lack. It saves, the program "
            f"converts, it loads and trains on (`test_trainer.py`). The same in each of the three, and across them (`{others}`): what one of them saved goes on "
            "in 0.18.2 and 0.19.2, with `target.megatron` set to that release. `test_args_table.py` asks that `configs/models/args.toml` has every argument of "
            "their parsers.\n\n" + table(head, rows_of(test_trainer.CASES))
            + "\nIn 0.19.2 alone. Transformer Engine, the package of Muon and Lion, and kernels of Mamba are replaced by what has their parameters and states; "
            "asynchronous saves are written by the process itself. Megatron-FSDP and torch's FSDP2 run on a mesh of CPUs; with Megatron-FSDP two ranks save and one loads.\n\n"
            + table(head, rows_of(test_trainer.NEWER))
            + "\nOf a model of the other class, which `target.model` asks for: a hybrid model has attention and MLP as two layers.\n\n"
            + table(head, rows_of(test_trainer.PAIRS))
            + "\nSaved by Megatron-Core 0.16.1, which has no trainer, with args of these tests:\n\n" + table(head, old)
            + "\nRefused:\n\n" + table(["case", "target", "result"], refused)
            + "\nFaults and limits of 0.19.2 itself, which its own files show without this program:\n\n" + table(["case", "the trainer", "its error"], own))


def bridge_section():
    families = bridge_families
    rows = []
    for name in families.FAMILIES:
        if name in families.NOT_TAKEN:
            rows.append((name, "not run", "", f"Megatron-Bridge refuses the folder: {families.NOT_TAKEN[name]}"))
        elif name in families.BRIDGES_FAULT:
            rows.append((name, "not compared", "", f"Megatron-Bridge changes the model: {families.BRIDGES_FAULT[name]}"))
        elif name in families.NO_FORM:
            rows.append((name, "refused here", "", f"the map has no form of it in Megatron's files: {families.NO_FORM[name]}"))
        else:
            given = {"config": "`source.config`", "reference": "`target.reference`"}.get(families.NEEDS.get(name), "nothing")
            wide = ", as F32: Megatron-Bridge saves F32 where only `text_config` states the dtype" if name in families.IN_FLOAT32 else ""
            started = f"no: {families.NOT_STARTED[name]}" if name in families.NOT_STARTED else "yes"
            rows.append((name, "same, both ways", started, f"its save into Hugging Face needs {given}{wide}"))
    same = sum(row[1].startswith("same") for row in rows)
    refused = sum(row[1] == "not run" for row in rows)
    not_here = sum(row[1] == "refused here" for row in rows)
    started = sum(row[2] == "yes" for row in rows)
    return ("## Megatron-Bridge 0.6.2\n\nIt imports a small folder and saves it, and the program makes the folder again; the program makes `torch_dist` of the "
            "folder, and Megatron-Bridge's loader gets the weights of its own import (`test_bridge.py`). "
            f"Of {len(rows)} folders {same} are the same in both directions, {refused} are such as Megatron-Bridge does not take with transformers 5.12.1, "
            f"the newest that it allows, {len(rows) - same - refused - not_here} it takes for another model, and {not_here} are refused here. Of the {same} it starts from {started} as `target.program = \"megatron-bridge\"` "
            "writes them, by nothing but the target (`load_megatron_model`). A run of Megatron-LM 0.19.2 (`dense`, "
            "`experts-default-etp` above) goes on in Megatron-Bridge from such a target: the next step is that of a run that never stopped.\n\n" + table(["folder", "weights", "starts from it", "remark"], rows))


def mcore_bridge_section():
    families, rows = mcore_bridge_families, []
    tables = {"refused by mcore-bridge": families.REFUSED, "changed by mcore-bridge": families.FAULTS}
    for model_type, names in families.MODELS.items():
        same = [name for name in names if not any(name in table for table in tables.values())]
        said = {(word, table[name]): [each for each in names if table.get(each) == table[name]] for word, table in tables.items() for name in names if name in table}
        remark = "; ".join(f"{', '.join(those)} {word}: {reason}" for (word, reason), those in said.items())
        result = "same, both ways" if same else next(reversed(said))[0] if names else "not run"
        rows.append((model_type, result, ", ".join(same), remark or ("" if names else families.WITHOUT[model_type])))
    same, absent = (sum(row[1] == word for row in rows) for word in ("same, both ways", "not run"))
    return ("## mcore-bridge 1.6.5\n\nThe library of models of ms-swift, with Megatron-Core 0.19.2. It loads a small folder and the model is saved as ms-swift saves "
            "it, and the program makes the folder again with `source.config`; the program makes `torch_dist` of the folder, with "
            "`target.program = \"ms-swift\"`, and mcore-bridge's model gets the weights of its own import (`test_mcore_bridge.py`). "
            f"Of the {len(rows)} model types that it registers {same} are the same in both directions, {len(rows) - same - absent} are refused or changed, and "
            f"{absent} {'is' if absent == 1 else 'are'} not run. The towers of {', '.join(families.TOWERS)} are code of the published folders or of other "
            "packages: of them the test has names and shapes alone. Biases of routers are compared after rounding to BF16, as `Float16Module` of Megatron-Core leaves them.\n\n"
            + table(["model_type", "weights", "folders", "other folders"], rows))


def page():
    lines = [line for line in RELEASES.read_text().splitlines() if line and not line.startswith("#")]
    releases = "\n".join(f"- `{line.split()[0]}`" + (f" with `{'`, `'.join(line.split()[2:])}`" if line.split()[2:] else "") for line in lines)
    return HEAD.format(releases=releases) + trainer_section() + "\n" + bridge_section() + "\n" + mcore_bridge_section()


if __name__ == "__main__":
    PAGE.write_text(page())
