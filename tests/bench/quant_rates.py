"""python quant_rates.py CONVERT_BENCH: how fast one core quantises and dequantises, beside memcpy, and how fast the libraries do.

CONVERT_BENCH is the program of that name (a build with RESHARD_BENCHMARKS). Rates are GB a second of BF16 weights: what is read where weights are quantised,
what is written where they are dequantised. The libraries run in PyTorch on the CPU with one thread, on one matrix of 4096 x 4096. The best of five counts.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from test_made_quant import by_compressed_tensors, by_transformers, scheme_of  # noqa: E402

SIZE = 4096
FORMS = ("fp8-block", "fp8-channel", "mxfp8", "int4-group")


def best(work):
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 2 * SIZE * SIZE / min(times) / 1e9


def dequantised_by_compressed_tensors(state, scheme):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format

    compressor = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme))
    return compressor.decompress({name: state[name] for name in compressor.compression_param_names(scheme)}, scheme)["weight"].to(torch.bfloat16)


def main(bench):
    command = [bench, "--benchmark_filter=copy|encode|blocks|nvfp4|packed|by_columns|int8_zero", "--benchmark_min_time=0.1", "--benchmark_format=json"]
    for row in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["benchmarks"]:
        print(f"reshard {row['name']:44} {row['bytes_per_second'] / 1e9:6.2f} GB/s", flush=True)
    torch.set_num_threads(1)
    weight = (torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 0.05).to(torch.bfloat16)
    copy = torch.empty_like(weight)
    print(f"{'torch copy':52} {best(lambda: copy.copy_(weight)):6.2f} GB/s")
    print(f"{'transformers makes fp8-block':52} {best(lambda: by_transformers(weight, [128, 128])):6.2f} GB/s")
    for form in FORMS:
        scheme = scheme_of(form, 128)
        state = by_compressed_tensors(weight, scheme)
        print(f"{'compressed-tensors makes ' + form:52} {best(lambda: by_compressed_tensors(weight, scheme)):6.2f} GB/s")
        print(f"{'compressed-tensors dequantises ' + form:52} {best(lambda: dequantised_by_compressed_tensors(state, scheme)):6.2f} GB/s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
