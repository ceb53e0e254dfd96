// Sources of one format that are damaged or mixed, and what they are refused with.

#include <algorithm>

#include <gtest/gtest.h>

#include "core/formats/format.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/formats/run/run_record.hpp"
#include "tests/core/formats/megatron/support.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/sample_checkpoints.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

Checkpoint open(fs::path const& folder, FormatId format = FormatId::automatic) {
  return open_checkpoint(folder, format, {}, LoneReader());
}

SampleMaker maker(std::string_view name) {
  for (SampleMaker const& one : sample_makers())
    if (one.name == name) return one;
  ADD_FAILURE() << "no sample of " << name;
  return {};
}

// --- any format

TEST(SourceRefusals, OfAddresses) {
  expect_refused(ErrorKind::source, "is an address, and only local paths are read",
                 [] { choose_format("s3://bucket/checkpoint"); });
}

TEST(SourceRefusals, OfAnotherFormatThanIsStated) {
  ScratchFolder const scratch("stated_format");
  SampleCheckpoint const sample = maker("fsdp_dtensor").make(scratch.path() / "sample");
  expect_refused(ErrorKind::source,
                 "is a fsdp_dtensor checkpoint by its files and keys, source.format is torch_dist",
                 [&] { open(sample.path, FormatId::torch_dist); });
}

TEST(SourceRefusals, OfFilesThatRanksSeeDifferently) {
  FileStamp one;
  one.bytes = 12;
  FileStamp other = one;
  other.bytes = 14;
  expect_refused(ErrorKind::source,
                 "/a: rank 1 sees a different file than rank 0: size 12 against 14",
                 [&] { refuse_two_worlds("/a", 1, one, 0, other); });
}

TEST(SourceRefusals, OfStridedViewsInARunRecord) {
  MemoryFile const memory;
  PickledTensor tensor;
  tensor.strides = {1, 2};
  RunRecord record;
  record.torch = std::make_shared<TorchFile>(
      read_torch_file(memory.holding(bytes_of(torch_zip(pickle_of(pickled_tensor(tensor)))))));
  record.file = "common.pt";
  expect_refused(ErrorKind::source, "the common state holds a tensor that is a strided view",
                 [&] { tensor_bytes(record, record.document().tensors.front()); });
}

// --- safetensors

/// One file with a tensor "w" of bytes.
std::string safetensors_file(std::string const& shape, std::string const& metadata) {
  std::string const header = "{\"__metadata__\": {\"DCP_SHARDING_INFO\": \"" + metadata +
                             "\"}, \"w\": {\"dtype\": \"U8\", \"shape\": " + shape +
                             ", \"data_offsets\": [0, 4]}}";
  return little_endian(std::uint64_t{header.size()}) + header + "abcd";
}

TEST(SourceRefusals, OfBoxesThatDoNotFit) {
  ScratchFolder const offsets("boxes_offsets");
  write_text_file(offsets.path() / "a.safetensors",
                  safetensors_file("[4]", "{\\\"w\\\": {\\\"saved_offsets\\\": [-1]}}"));
  expect_refused(ErrorKind::source, "saved_offsets of 'w' are [-1], expected 1 numbers from 0 on",
                 [&] { open(offsets.path()); });
  ScratchFolder const shapes("boxes_shapes");
  write_text_file(shapes.path() / "a.safetensors", safetensors_file("[4]", "{}"));
  write_text_file(shapes.path() / "b.safetensors", safetensors_file("[2, 2]", "{}"));
  expect_refused(ErrorKind::source, "'w' is U8 with 2 dimensions here, U8 with 1 in another file",
                 [&] { open(shapes.path()); });
}

TEST(SourceRefusals, OfAnAdapterWithoutItsConfig) {
  ScratchFolder const scratch("adapter_alone");
  std::string const header = R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})";
  write_text_file(scratch.path() / "adapter_model.safetensors",
                  little_endian(std::uint64_t{header.size()}) + header + "abcd");
  expect_refused(ErrorKind::source, "which states how the adapter is scaled",
                 [&] { open(scratch.path(), FormatId::huggingface); });
}

// --- DCP

TEST(SourceRefusals, OfObjectsThatAreCutOrOverwritten) {
  ScratchFolder const scratch("dcp_objects");
  SampleCheckpoint const sample = maker("torch_dist").make_with_state(scratch.path() / "sample");
  Checkpoint const opened = open(sample.path);
  auto const last =
      std::ranges::max_element(opened.stored.objects, {},
                               [](StoredObject const& object) { return object.item.offset_bytes; });
  ASSERT_NE(last, opened.stored.objects.end());
  fs::path const file = opened.files[last->item.file];
  File::open_for_writing(file).write_at(last->item.offset_bytes, std::as_bytes(std::span("PX", 2)));
  expect_refused(ErrorKind::source, "is not a complete torch file", [&] { open(sample.path); });
  fs::resize_file(file, last->item.offset_bytes + 10);
  expect_refused(ErrorKind::source, "is recorded at bytes [", [&] { open(sample.path); });
}

// --- Megatron

TEST(SourceRefusals, OfShardsOfTwoIterations) {
  ScratchFolder const scratch("two_iterations");
  SampleCheckpoint const sample = maker("megatron").make(scratch.path() / "sample");
  fs::path const changed = sample.files.back();
  pickle::Document document = read_torch_file(File::open_for_reading(changed)).document;
  document.set(document.root, "iteration", document.add_int(99));
  megatron::write_torch_file(changed, document);
  expect_refused(ErrorKind::source, "'iteration' is 99, and", [&] { open(sample.path); });
}

}  // namespace
}  // namespace reshard::test
