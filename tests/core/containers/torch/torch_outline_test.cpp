// Files that are compared with one that was read: what compares equal is what read_torch_file()
// would say of it.

#include "core/containers/torch/torch_outline.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using pickle::Document;
using pickle::NodeId;

std::vector<pickle::Outline::Path> const paths = {{"args", "rank"}, {"args", "none"}, {"random"}};

/// What differs between the files of two ranks.
struct Rank {
  std::int64_t number = 3;
  std::int64_t random = 70'000;
  std::string bytes = "a\xe9\xffz";
  std::byte weight{1};
  std::string key = "weight";
};

Document document_of(Rank const& rank) {
  Document document;
  document.root = document.add_dict();
  NodeId const args = document.add_dict();
  document.set(args, "rank", document.add_int(rank.number));
  document.set(args, "hidden", document.add_int(8));
  document.set(document.root, "args", document.add_object("argparse", "Namespace", args));
  NodeId const random = document.add_dict();
  document.set(random, "python", document.add_tuple({document.add_int(rank.random)}));
  document.set(random, "numpy", document.add_bytes(rank.bytes));
  document.set(random, "torch", document.add_tensor(DType::u8, {5}));
  document.set(document.root, "random", document.add_list({random}));
  NodeId const model = document.add_dict();
  document.set(model, rank.key, document.add_tensor(DType::f32, {2, 3}));
  document.set(document.root, "model", model);
  return document;
}

std::string bytes_of(Rank const& rank) {
  Document document = document_of(rank);
  TorchFilePlan const plan = plan_torch_file(document, "archive");
  std::string bytes(plan.size_bytes, '\0');
  std::vector<std::uint32_t> sums;
  for (ZipRecord const& storage : plan.storages) {
    std::string const payload(storage.size_bytes, static_cast<char>(rank.weight));
    bytes.replace(storage.payload_offset_bytes, payload.size(), payload);
    sums.push_back(crc32(std::as_bytes(std::span(payload))));
  }
  for (FileSegment const& segment : render_torch_file(plan, sums))
    bytes.replace(segment.offset_bytes, segment.bytes.size(), segment.bytes);
  return bytes;
}

class Outlines : public testing::Test {
 protected:
  std::optional<TorchOutline::Own> compare(std::string const& bytes) {
    return outline_.compare(written("other", bytes));
  }
  File written(std::string const& name, std::string_view bytes) {
    auto const path = scratch_.path() / name;
    File const file = File::create(path);
    file.write_at(0, std::as_bytes(std::span(bytes)));
    return File::open_for_reading(path);
  }

  ScratchFolder scratch_{"torch_outline"};
  TorchOutline outline_{written("first", bytes_of({})), paths};
};

TEST_F(Outlines, FilesOfOtherRanksCompareEqualAndSayWhatIsTheirOwn) {
  Rank const other{.number = 200, .random = 80'000, .bytes = "b\xe8\xf0y", .weight = std::byte{7}};
  std::string const bytes = bytes_of(other);
  auto const own = compare(bytes);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->values, (pickle::Outline::Values{200, std::nullopt, std::nullopt}));
  TorchFile const torch = read_torch_file(written("again", bytes));
  for (auto const& [key, record] : torch.storages)
    EXPECT_EQ(own->crc32[outline_.record_at(record.offset_bytes)], record.crc32) << key;
  EXPECT_EQ(compare(bytes_of({}))->values.front(), 3);
}

TEST_F(Outlines, NumbersThatTakeMoreOrFewerBytesAreTheSameKindOfValue) {
  std::string const own = pickle::dump(document_of({}));
  pickle::Outline const outline(own, paths);
  for (std::int64_t const number : {0L, 255L, 65'535L, 70'000L, -1L, 1L << 40U, -(1L << 40U)})
    for (std::string const bytes : {"\xff", "long text"}) {
      auto const values =
          outline.compare(pickle::dump(document_of({.number = number, .bytes = bytes})));
      ASSERT_TRUE(values) << number;
      EXPECT_EQ(values->front(), number);
    }
}

TEST_F(Outlines, AnythingElseIsNotComparedEqual) {
  EXPECT_FALSE(compare(bytes_of({.key = "weighs"})));
  EXPECT_FALSE(compare(bytes_of({}) + "x"));
  EXPECT_FALSE(compare(bytes_of({}).substr(1)));
}

/// A value that another part of the document has as well is not free.
TEST_F(Outlines, SharedValuesMayNotDiffer) {
  auto const shared = [](std::string_view text) {
    Document document;
    document.root = document.add_dict();
    NodeId const word = document.add_string(text);
    document.set(document.root, "random", document.add_list({word}));
    document.set(document.root, "model", document.add_list({word}));
    return pickle::dump(document);
  };
  pickle::Outline const outline(shared("one"), paths);
  EXPECT_TRUE(outline.compare(shared("one")));
  EXPECT_FALSE(outline.compare(shared("two")));
}

std::string shown(TorchFile const& torch) {
  std::string text = torch.archive;
  for (auto const& tensor : torch.document.tensors)
    text += fmt::format(" {}+{}:{}", tensor.storage.key, tensor.offset, name(tensor.dtype));
  Document document = torch.document;
  document.erase(document.root, "random");
  document.erase(document.find(document.root, "args"), "rank");
  return text + pickle::dump(document);
}

/// Every byte outside of weights, changed in some ways: what is accepted reads as the first file.
TEST_F(Outlines, WhatComparesEqualReadsAlike) {
  std::string const good = bytes_of({});
  std::string const expected = shown(read_torch_file(written("good", good)));
  auto const path = scratch_.path() / "good";
  File const writer = File::open_for_writing(path);
  File const reader = File::open_for_reading(path);
  auto const put = [&](std::size_t at, char byte) {
    writer.write_at(at, std::as_bytes(std::span(&byte, 1)));
  };
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (unsigned const flip : {0x01U, 0x80U, 0xffU, static_cast<unsigned>(good[at]) & 0xffU}) {
      put(at, static_cast<char>(static_cast<unsigned char>(good[at]) ^ flip));
      if (flip != 0 && outline_.compare(reader)) {
        ++accepted;
        std::string found;
        auto const error = capture([&] { found = shown(read_torch_file(reader)); });
        EXPECT_FALSE(error) << at << ": " << (error ? error->sentence() : "");
        EXPECT_EQ(found, expected) << at;
      }
      put(at, good[at]);
    }
  EXPECT_GT(accepted, 0U);  // payloads
}

}  // namespace
}  // namespace reshard
