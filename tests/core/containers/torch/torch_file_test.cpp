#include "core/containers/torch/torch_file.hpp"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/torch_frame.hpp"
#include "core/containers/torch/zip/zip_directory.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

using pickle::Document;
using pickle::NodeId;

/// {'a': bf16 [2, 3], 'empty': f32 [0], 'scalar': i64 [], 'fp8': [5]}
Document small_document() {
  Document document;
  document.root = document.add_dict();
  document.set(document.root, "a", document.add_tensor(DType::bf16, {2, 3}));
  document.set(document.root, "empty", document.add_tensor(DType::f32, {0}));
  document.set(document.root, "scalar", document.add_tensor(DType::i64, {}));
  document.set(document.root, "fp8", document.add_tensor(DType::f8_e4m3, {5}));
  return document;
}

std::vector<std::byte> pattern(std::uint64_t bytes, std::size_t seed) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<std::byte>((i + 13 * seed) % 251);
  return result;
}

/// What has been written, to be read: a file that is written cannot be.
File again(File const& written) { return File::open_for_reading(written.path()); }

/// Writes payloads in `order`, then the rest.
void write_file(File const& file, TorchFilePlan const& plan,
                std::vector<std::size_t> const& order) {
  std::vector<std::uint32_t> crcs(plan.storages.size());
  for (std::size_t const i : order) {
    auto const bytes = pattern(plan.storages[i].size_bytes, i);
    file.write_at(plan.storages[i].payload_offset_bytes, bytes);
    crcs[i] = crc32(bytes);
  }
  finish_torch_file(file, plan, crcs);
}

TEST(TorchFile, ARepeatedTensorHasOneStoredElement) {
  ScratchFolder const folder("torch_repeated");
  Document document;
  document.root = document.add_repeated(DType::f32, {400, 300});
  TorchFilePlan const plan = plan_torch_file(document, "m");
  ASSERT_EQ(plan.storages.size(), 1U);
  EXPECT_EQ(plan.storages.front().size_bytes, 4U);
  File const file = File::create(folder.path() / "m.pt");
  write_file(file, plan, {0});
  TorchFile const torch = read_torch_file(again(file));
  FileTensor const tensor = file_tensor(torch, torch.document.tensors.front(), "m");
  EXPECT_EQ(tensor.shape, (std::vector<Index>{400, 300}));
  EXPECT_EQ(tensor.strides, (std::vector<Index>{0, 0}));
}

TEST(TorchFile, WhatIsPlannedAndWrittenIsReadBack) {
  ScratchFolder const folder("torch_file");
  Document document = small_document();
  TorchFilePlan const plan = plan_torch_file(document, "m");
  File const file = File::create(folder.path() / "m.pt");
  write_file(file, plan, {2, 0, 3, 1});
  EXPECT_EQ(file.size_bytes(), plan.size_bytes);

  TorchFile const torch = read_torch_file(again(file));
  EXPECT_EQ(torch.container, TorchFile::Container::zip);
  ASSERT_EQ(torch.document.tensors.size(), 4U);
  std::size_t i = 0;
  for (std::string const key : {"a", "empty", "scalar", "fp8"}) {
    NodeId const node = torch.document.find(torch.document.root, key);
    ASSERT_NE(node, pickle::no_node);
    FileTensor const tensor =
        file_tensor(torch, torch.document.tensors[torch.document.at(node).index], key);
    EXPECT_EQ(tensor.name, key);
    EXPECT_EQ(tensor.offset_bytes, plan.storages[i].payload_offset_bytes);
    EXPECT_EQ(tensor.size_bytes, plan.storages[i].size_bytes);
    EXPECT_TRUE(tensor.strides.empty());
    std::vector<std::byte> bytes(tensor.size_bytes);
    again(file).read_at(tensor.offset_bytes, bytes);
    EXPECT_EQ(bytes, pattern(tensor.size_bytes, i));
    EXPECT_EQ(torch.storages.at(std::to_string(i)).crc32, crc32(bytes));
    ++i;
  }
}

TEST(TorchFile, PayloadsAreAlignedAndNothingOverlaps) {
  Document document = small_document();
  TorchFilePlan const plan = plan_torch_file(document, "a_rather_long_folder_name");
  std::vector<ZipRecord> records = plan.small_records;
  records.insert(records.end(), plan.storages.begin(), plan.storages.end());
  std::ranges::sort(records, {}, &ZipRecord::header_offset_bytes);
  std::uint64_t end = 0;
  for (ZipRecord const& record : records) {
    EXPECT_EQ(record.header_offset_bytes, end) << record.name;
    EXPECT_EQ(record.payload_offset_bytes % 64, 0U) << record.name;
    EXPECT_GE(record.payload_offset_bytes, record.header_offset_bytes + 30 + record.name.size() + 4)
        << record.name;
    end = record.payload_offset_bytes + record.size_bytes + (record.size_bytes == 0 ? 0 : 16);
  }
  EXPECT_EQ(plan.small_records[0].name, "a_rather_long_folder_name/data.pkl");
  EXPECT_EQ(plan.storages[3].name, "a_rather_long_folder_name/data/3");
}

TEST(TorchFile, ForClonesAllPayloadsAreAtBlocksWhereThatIsWorthIt) {
  for (Index const elements : {100'000, 1000}) {
    Document document;
    document.root = document.add_list({document.add_tensor(DType::f32, {elements, 10}),
                                       document.add_tensor(DType::f32, {7}),
                                       document.add_tensor(DType::u8, {0})});
    Document same = document;
    TorchFilePlan const usual = plan_torch_file(same, "m");
    TorchFilePlan const plan = plan_torch_file(document, "m", DataLayout::for_clones);
    bool const aligned = elements == 100'000;  // 4 MB against 40 kB
    EXPECT_EQ(plan.size_bytes == usual.size_bytes, !aligned);
    EXPECT_EQ(plan.pickle_bytes, usual.pickle_bytes);
    for (ZipRecord const& record : plan.storages)
      EXPECT_EQ(record.payload_offset_bytes % (aligned ? 4096 : 64), 0U);
    ScratchFolder const folder("torch_file");
    File const file = File::create(folder.path() / "m.pt");
    write_file(file, plan, {0, 1, 2});
    TorchFile const torch = read_torch_file(again(file));
    EXPECT_EQ(torch.storages.at("0").offset_bytes, plan.storages[0].payload_offset_bytes);
    std::string text(file.size_bytes(), '\0');
    again(file).read_at(0, std::as_writable_bytes(std::span(text)));
    std::size_t const name = text.find("m/.storage_alignment");
    ZipRecord const& stated = plan.small_records[2];
    EXPECT_EQ(stated.name, "m/.storage_alignment");
    EXPECT_LT(name, stated.payload_offset_bytes);
    EXPECT_EQ(text.substr(stated.payload_offset_bytes, stated.size_bytes), aligned ? "4096" : "64");
  }
}

TEST(TorchFile, StoragesAreNumberedInTheOrderOfThePickle) {
  Document document;
  NodeId const second = document.add_tensor(DType::u8, {2});
  document.add_tensor(DType::u8, {5});  // nothing leads to it
  NodeId const first = document.add_tensor(DType::u8, {3});
  document.root = document.add_list({first, second, first});
  TorchFilePlan const plan = plan_torch_file(document, "m");
  ASSERT_EQ(plan.storages.size(), 3U);
  EXPECT_EQ(plan.storages[2].name, "m/data/0");
  EXPECT_EQ(plan.storages[0].name, "m/data/1");
  EXPECT_EQ(plan.storages[1].name, "m/data/2");
  EXPECT_LT(plan.storages[2].header_offset_bytes, plan.storages[0].header_offset_bytes);
  EXPECT_LT(plan.storages[0].header_offset_bytes, plan.storages[1].header_offset_bytes);
  EXPECT_EQ(plan.storages[2].size_bytes, 3U);
  ScratchFolder const folder("torch_file");
  File const file = File::create(folder.path() / "m.pt");
  write_file(file, plan, {0, 1, 2});
  Document const read = read_torch_file(again(file)).document;
  ASSERT_EQ(read.tensors.size(), 2U);
  EXPECT_EQ(read.tensors[0].storage.key, "0");
  EXPECT_EQ(read.tensors[0].shape, (std::vector<Index>{3}));
}

TEST(TorchFile, AFileInsideAnotherIsReadAndWritten) {
  constexpr std::uint64_t base = 1001;
  Document document = small_document();
  TorchFilePlan const plan = plan_torch_file(document, "archive");
  ScratchFolder const folder("torch_file");
  File const file = File::create(folder.path() / "m.pt");
  std::vector<std::uint32_t> crcs;
  for (std::size_t i = 0; i < plan.storages.size(); ++i) {
    auto const bytes = pattern(plan.storages[i].size_bytes, i);
    file.write_at(base + plan.storages[i].payload_offset_bytes, bytes);
    crcs.push_back(crc32(bytes));
  }
  finish_torch_file(file, plan, crcs, base);
  ASSERT_EQ(file.size_bytes(), base + plan.size_bytes);
  file.write_at(base + plan.size_bytes,
                std::as_bytes(std::span(std::string_view("PK\5\6 of the next"))));
  File const written = again(file);
  TorchFile const torch = read_torch_file(FileRange(written, base, plan.size_bytes));
  EXPECT_EQ(torch.storages.at("3").offset_bytes, base + plan.storages[3].payload_offset_bytes);
  try {
    read_torch_file(FileRange(written, base, plan.size_bytes - 1));
    FAIL() << "an item cut short was read";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(
        error.sentence().find(fmt::format("bytes [{}, {})", base, base + plan.size_bytes - 1)),
        std::string::npos)
        << error.what();
  }
  EXPECT_THROW(FileRange(file, file.size_bytes(), 1), Error);
  EXPECT_THROW(FileRange(file, ~std::uint64_t{0}, 2), Error);
}

TEST(TorchFile, SegmentsAndPayloadsAreTheWholeFile) {
  Document document = small_document();
  TorchFilePlan const plan = plan_torch_file(document, "m");
  std::vector<FileSegment> const segments = render_torch_file(plan, std::vector<std::uint32_t>(4));
  ASSERT_EQ(segments.size(), 4U);  // one storage is empty
  std::uint64_t end = 0;
  std::uint64_t bytes = 0;
  for (FileSegment const& segment : segments) {
    EXPECT_GE(segment.offset_bytes, end);
    end = segment.offset_bytes + segment.bytes.size();
    bytes += segment.bytes.size();
  }
  for (ZipRecord const& storage : plan.storages) bytes += storage.size_bytes;
  EXPECT_EQ(end, plan.size_bytes);
  EXPECT_EQ(bytes, plan.size_bytes);
}

TEST(TorchFile, TheOrderOfWritesDoesNotShow) {
  ScratchFolder const folder("torch_file");
  std::vector<std::vector<std::byte>> files;
  for (std::vector<std::size_t> const& order :
       {std::vector<std::size_t>{0, 1, 2, 3}, std::vector<std::size_t>{3, 2, 1, 0}}) {
    Document document = small_document();
    write_file(File::create(folder.path() / "m.pt"), plan_torch_file(document, "m"), order);
    files.push_back(bytes_of(folder.path() / "m.pt"));
  }
  EXPECT_EQ(files[0], files[1]);
}

TEST(TorchFile, PlanningMakesViewsCompact) {
  // Two views of one storage: a transposed one and a slice.
  RawZip zip =
      torch_zip(pickle_of(pickled_tensor({.shape = {2, 2}, .strides = {1, 2}}) +
                          pickled_tensor({.offset = 1, .shape = {3}, .strides = {1}}) + "\x86"));
  MemoryFile const memory;
  TorchFile torch = read_torch_file(memory.holding(bytes_of(zip)));
  FileTensor const transposed = file_tensor(torch, torch.document.tensors[0], "t");
  EXPECT_EQ(transposed.strides, (std::vector<Index>{1, 2}));
  FileTensor const slice = file_tensor(torch, torch.document.tensors[1], "s");
  EXPECT_TRUE(slice.strides.empty());
  EXPECT_EQ(slice.offset_bytes, transposed.offset_bytes + 4);
  TorchFilePlan const plan = plan_torch_file(torch.document, "m");
  ASSERT_EQ(plan.storages.size(), 2U);
  EXPECT_EQ(plan.storages[0].size_bytes, 16U);
  EXPECT_EQ(plan.storages[1].size_bytes, 12U);
  EXPECT_EQ(torch.document.tensors[0].strides, (std::vector<Index>{2, 1}));
  EXPECT_EQ(torch.document.tensors[1].offset, 0);
  EXPECT_EQ(torch.document.tensors[1].storage.key, "1");
}

TEST(TorchFile, DimensionsOfSizeOneDoNotMakeATensorStrided) {
  MemoryFile const memory;
  TorchFile const torch = read_torch_file(memory.holding(
      bytes_of(torch_zip(pickle_of(pickled_tensor({.shape = {1, 2, 1}, .strides = {99, 1, 7}}))))));
  EXPECT_TRUE(file_tensor(torch, torch.document.tensors[0], "t").strides.empty());
}

TEST(TorchFile, AnEmptyTensorMayNameAnyPlace) {
  MemoryFile const memory;
  TorchFile const torch = read_torch_file(memory.holding(bytes_of(
      torch_zip(pickle_of(pickled_tensor({.offset = 100, .shape = {0, 5}, .strides = {5, 1}}))))));
  FileTensor const tensor = file_tensor(torch, torch.document.tensors[0], "t");
  EXPECT_EQ(tensor.size_bytes, 0U);
  EXPECT_EQ(tensor.offset_bytes, torch.storages.at("0").offset_bytes);
}

TEST(TorchFile, ReadsTheContainerBeforeOneDotSix) {
  MemoryFile const memory;
  File const file = memory.holding(bytes_of(RawLegacy{}));
  TorchFile const torch = read_torch_file(file);
  EXPECT_EQ(torch.container, TorchFile::Container::legacy);
  ASSERT_EQ(torch.document.tensors.size(), 1U);
  EXPECT_EQ(file_tensor(torch, torch.document.tensors[0], "t").offset_bytes + 16,
            file.size_bytes());
  EXPECT_FALSE(torch.storages.at("0").crc32.has_value());
}

TEST(TorchFile, ReadsALegacyPickleLargerThanTheFirstWindow) {
  RawLegacy legacy;
  legacy.object =
      pickle_of("](" + pickled_string(std::string(3 << 20, 'x')) + pickled_tensor({}) + "e");
  MemoryFile const memory;
  TorchFile const torch = read_torch_file(memory.holding(bytes_of(legacy)));
  EXPECT_EQ(torch.document.tensors.size(), 1U);
}

TEST(TorchFile, StoragesOutsideTensorsCannotBePlanned) {
  MemoryFile const memory;
  TorchFile torch = read_torch_file(memory.holding(
      bytes_of(torch_zip(pickle_of("cm\nSubclass\n" + pickled_storage({}) + "\x85R")))));
  try {
    plan_torch_file(torch.document, "m");
    FAIL() << "a bare storage was planned";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
  }
}

TEST(TorchFile, ArchiveNamesAreFolders) {
  for (std::string const name : {"", ".", "..", "a/b", "a\\b"}) {
    Document document = small_document();
    EXPECT_THROW(plan_torch_file(document, name), Error) << name;
  }
}

/// Reads back a file whose payloads were never written (a sparse file of zeros).
void expect_sparse_file_is_read(Document& document, std::size_t directory_entries) {
  ScratchFolder const folder("torch_file_sparse");
  TorchFilePlan const plan = plan_torch_file(document, "big");
  File const file = File::create(folder.path() / "big.pt");
  std::vector<std::uint32_t> crcs;
  for (ZipRecord const& storage : plan.storages) crcs.push_back(crc32_of_zeros(storage.size_bytes));
  finish_torch_file(file, plan, crcs);
  ASSERT_EQ(file.size_bytes(), plan.size_bytes);
  File const written = again(file);
  EXPECT_EQ(zip::read_directory(written).size(), directory_entries);
  TorchFile const torch = read_torch_file(written);
  ASSERT_EQ(torch.document.tensors.size(), plan.storages.size());
  for (std::size_t i = 0; i < plan.storages.size(); ++i) {
    StorageRecord const& record = torch.storages.at(std::to_string(i));
    ASSERT_EQ(record.offset_bytes, plan.storages[i].payload_offset_bytes) << i;
    ASSERT_EQ(record.size_bytes, plan.storages[i].size_bytes) << i;
    // 2^32 - 1 zeros happen to have the CRC 0, which reads as "not computed".
    ASSERT_EQ(record.crc32.value_or(0), crcs[i]) << i;
  }
}

TEST(Zip64, RecordsAboveFourGibibytesAndOffsetsBehindThem) {
  constexpr Index four_gibibytes = Index{1} << 32;
  for (Index const size :
       {four_gibibytes - 2, four_gibibytes - 1, four_gibibytes, Index{3} << 40}) {
    Document document;
    document.root = document.add_list(
        {document.add_tensor(DType::u8, {7}), document.add_tensor(DType::u8, {size}),
         document.add_tensor(DType::u8, {size}), document.add_tensor(DType::f64, {1})});
    expect_sparse_file_is_read(document, 10);
  }
}

TEST(Zip64, MoreRecordsThanTheEndRecordCanCount) {
  // 6 small records: 65534 and 65535 in all are either side of the field's limit.
  for (std::size_t const tensors : {65528U, 65529U, 70000U}) {
    Document document;
    std::vector<NodeId> nodes;
    for (std::size_t i = 0; i < tensors; ++i)
      nodes.push_back(document.add_tensor(DType::u8, {static_cast<Index>(i % 3)}));
    document.root = document.add_list(std::move(nodes));
    expect_sparse_file_is_read(document, tensors + 6);
  }
}

TEST(Zip64, SizesBeyondSixtyFourBitsAreRefused) {
  Document document;
  document.root = document.add_list({document.add_tensor(DType::u8, {Index{1} << 62}),
                                     document.add_tensor(DType::u8, {Index{1} << 62}),
                                     document.add_tensor(DType::u8, {Index{1} << 62}),
                                     document.add_tensor(DType::u8, {Index{1} << 62})});
  EXPECT_THROW(plan_torch_file(document, "m"), Error);
}

TEST(TorchFrames, EqualOnesAreHeldOnce) {
  Document document = small_document();
  TorchFilePlan const plan = plan_torch_file(document, "m");
  TorchFilePlan const other = plan_torch_file(document, "n");
  std::string const step("\x07\0\0\0\0\0\0\0", 8);
  TorchFrames frames;
  auto const first = frames.shared(plan, {});
  EXPECT_EQ(frames.shared(plan, {"", "", "", ""}), first);
  auto const with_step = frames.shared(plan, {"", "", step, ""});
  EXPECT_NE(with_step, first);
  EXPECT_EQ(frames.shared(plan, {"", "", step, ""}), with_step);
  EXPECT_NE(frames.shared(other, {}), first);
}

TEST(TorchFrame, PayloadsThatAreKnownArePartOfIt) {
  ScratchFolder const folder("torch_frame");
  Document document = small_document();
  TorchFilePlan const plan = plan_torch_file(document, "m");
  std::string const step("\x07\0\0\0\0\0\0\0", 8);
  TorchFrame const frame(plan, {"", "", step, ""});
  ASSERT_EQ(frame.records().size(), 3U);

  File const file = File::create(folder.path() / "m.pt");
  std::vector<std::uint32_t> crcs;
  std::size_t number = 0;
  for (SummedRecord const& record : frame.records()) {
    EXPECT_NE(record.offset_bytes, plan.storages[2].payload_offset_bytes);
    auto const bytes = pattern(record.size_bytes, number++);
    file.write_at(record.offset_bytes, bytes);
    crcs.push_back(crc32(bytes));
  }
  std::uint64_t end = 0;
  for (FileSegment const& segment : frame.rest(crcs, {})) {
    EXPECT_GE(segment.offset_bytes, end);
    end = segment.offset_bytes + segment.bytes.size();
    file.write_at(segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
  }
  EXPECT_EQ(file.size_bytes(), plan.size_bytes);
  TorchFile const torch = read_torch_file(again(file));
  for (auto const& [key, record] : torch.storages) {
    std::vector<std::byte> bytes(record.size_bytes);
    again(file).read_at(record.offset_bytes, bytes);
    EXPECT_EQ(record.crc32, crc32(bytes)) << key;
    if (key != "2") continue;
    EXPECT_EQ(std::memcmp(bytes.data(), step.data(), step.size()), 0);
  }
}

}  // namespace
}  // namespace reshard
