"""Why some refusals have no test that produces them, and tests that compare a sentence without its being thrown, or in builds of their own."""

# (reason, file, part of the sentence; "" for all of the file)
REASONS = [
    ("needs a Megatron run with zero-centred norms, which no sample is", "core/formats/deepspeed/target.cpp", "is stored without its one"),
    ("needs an HDF5 container with the state of another optimizer, which no sample is", "core/formats/deepspeed/target.cpp", "has the optimizer state"),
    ("needs a container of BF16 weights with moments and no masters, which no sample is", "core/formats/deepspeed/target.cpp", "no F32 master weight"),
    ("a map needs the sizes that are missing, and refuses before", "core/formats/mistral/params_of_config.cpp", "the size of a head"),
    ("needs a GPU", "core/device/cuda/cuda_device.cpp", ""),
    ("a race that no test can time", "core/io/direct_io.cpp", "was replaced by another file while it was opened"),
    ("such weights are read with the state of their optimizer, which is refused before", "stages/plan/averaged_weights.cpp", "lie in buffers"),
    ("needs an OpenSSL that forbids SHA-256", "core/base/hash/sha256.cpp", ""),
    ("needs a GPU that completes no work", "stages/stream/stream_on_device.cpp", "has completed no work"),
    ("needs a fault of this program: the two arithmetics agree on every shape", "stages/plan/source/catalog/stored_elements.cpp", "the second arithmetic gives it"),
    ("needs an MPI without threads", "core/transport/comm.cpp", "thread level"),
    ("needs four billion values in one file", "core/containers/dcp/metadata/metadata_objects.cpp", "more than {} objects of one class"),
    ("needs four billion values in one file", "core/containers/dcp/metadata/metadata_objects.cpp", "more than {} chunks"),
    ("needs four billion values in one file", "core/containers/dcp/metadata/metadata_reader.cpp", "storage_data has {} entries"),
    ("needs four billion values in one file", "core/containers/dcp/metadata/metadata_values.cpp", "cannot be held"),
    ("needs four billion values in one file", "core/containers/numbered.hpp", "cannot be held"),
    ("needs four billion values in one file", "core/containers/stored_chunks.cpp", "cannot be held"),
    ("needs a file of four million links, which takes minutes to make", "core/containers/hdf5/walk.cpp", "the file has more than {} links"),
    ("needs an HDF5 library with a layout that no release has", "core/containers/hdf5/walk.cpp", "its storage is of an unknown kind"),
    ("needs an HDF5 library that reads files which those of today refuse", "core/containers/hdf5/walk.cpp", "expected each below 2^63"),
    ("needs an HDF5 library that a file has taken over", "core/containers/hdf5/read_file.cpp", "libhdf5 returned an invalid answer"),
    ("needs a failure inside the HDF5 library", "core/containers/hdf5/parallel_writer.cpp", "close it"),
    ("needs a failure inside the HDF5 library", "core/containers/hdf5/child/plan.cpp", "close it"),
    ("needs a failure inside the HDF5 library", "core/containers/hdf5/child/plan.cpp", "set the offset of a dataset"),
    ("needs a machine without a few KiB of memory", "core/base/text/yaml.cpp", "no memory is left"),
    ("needs an NCCL that does not know its version", "core/transport/nccl/nccl_library.cpp", "does not report its version"),
    ("a file whose bytes change and whose time of change does not", "pipeline/publication/verify_target.cpp", "If that happens again"),
    ("ctest -R transport_abort.mpi.deaf makes it, in a program of its own", "core/transport/comm.cpp", "no message from another rank for"),
    ("ctest -R heartbeat.stop makes it, in a program of its own", "core/transport/monitor/heartbeat.cpp", "no heartbeat from rank"),
    ("ctest -R packaging.python_module makes it, in Python", "pipeline/extract/channel.cpp", ""),
    ("needs a machine without memory", "pipeline/extract/serve.cpp", "{}: make failed: {}"),
    ("needs a machine without memory", "pipeline/extract/serve.cpp", "{}: map failed: {}"),
    ("needs a machine without memory", "pipeline/extract/serve.cpp", "of memory are free"),
    ("ctest -R packaging.python_module makes it, in Python", "pipeline/extract/serve.cpp", ""),
    ("ctest -R packaging.python_module makes it, in Python", "pipeline/extract/array_reader.cpp", "the bytes that were read have the digest"),
    ("ctest -R watchdog.hang makes it, in a program of its own", "core/transport/monitor/watchdog.cpp", "no progress for"),
]

# (test, file, part of the sentence): the test calls what returns the sentence
NAMED_BY_HAND = [
    ("Dequantise.WhatIsNoFormIsNamed", "core/quant/scheme.cpp", ""),
    ("NcclProblem.NamesRanksHostsAndBothValues", "core/transport/nccl/rank_facts.cpp", "has NCCL {}"),
    ("NcclProblem.NamesRanksHostsAndBothValues", "core/transport/nccl/rank_facts.cpp", "NCCL needs the same on every rank"),
    ("Trace.ThatCannotBeWrittenDoesNotSpoilTheTarget", "stages/stream/trace.cpp", "The target is complete"),  # whose limit of file sizes stops the record, too
    ("NoHdf5.IsSaidByEveryCall", "core/containers/hdf5/no_hdf5.cpp", ""),
]
