"""Why some refusals have no test that produces them, and tests that compare a sentence without its being thrown."""

# (reason, file, part of the sentence; "" for all of the file)
REASONS = [
    ("needs a GPU", "core/device/cuda/cuda_device.cpp", ""),
    ("a race that no test can time", "core/io/direct_io.cpp", "was replaced by another file while it was opened"),
    ("needs an OpenSSL that forbids SHA-256", "core/base/sha256.cpp", ""),
    ("needs an MPI without threads", "core/transport/comm.cpp", "thread level"),
]

# (test, file, part of the sentence): the test calls what returns the sentence
NAMED_BY_HAND = [
    ("Dequantise.WhatIsNoFormIsNamed", "core/quant/scheme.cpp", ""),
]
