#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "tests/bounds/bounds.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

std::string file_of(std::string const& json) {
  return little_endian(std::uint64_t{json.size()}) + json;
}

void parse(std::string const& bytes) {
  static_cast<void>(
      safetensors::parse_header(std::as_bytes(std::span(bytes)), bytes.size(), "x.safetensors"));
}

std::string empty_tensor(std::string_view name) {
  return fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", name);
}

TEST(SafetensorsBounds, ManyTensors) {
  auto const numbered = [](std::size_t i) { return empty_tensor(std::to_string(i)); };
  EXPECT_EQ(bounded("500k tensors", file_of(joined("{", 500'000, numbered, "}")), parse), "");
  expect_refused(bounded("500k equal names",
                         file_of(joined(
                             "{", 500'000, [](std::size_t) { return empty_tensor("a"); }, "}")),
                         parse),
                 "appears twice");
  std::string const prefix(1000, 'x');
  EXPECT_EQ(
      bounded("long names",
              file_of(joined(
                  "{", 20'000,
                  [&](std::size_t i) { return empty_tensor(prefix + std::to_string(i)); }, "}")),
              parse),
      "");
}

TEST(SafetensorsBounds, WhatATensorCannotHave) {
  std::string const begin = R"({"a":{"dtype":"U8","shape":)";
  expect_refused(bounded("1M dimensions",
                         file_of(joined(
                             begin + "[", 1'000'000, [](std::size_t) { return "1"; },
                             R"(],"data_offsets":[0,1]}})")),
                         parse),
                 "dimensions");
  expect_refused(bounded("1M brackets", file_of(begin + std::string(1'000'000, '[') + "}}"), parse),
                 "x.safetensors");
  expect_refused(
      bounded("a long name", file_of("{" + empty_tensor(std::string(8'000'000, 'x')) + "}"), parse),
      "bytes, at most");
  expect_refused(
      bounded("1M entries of metadata",
              file_of(joined(R"({"__metadata__":{)", 1'000'000,
                             [](std::size_t i) { return fmt::format("\"{}\":\"\"", i); }, "}}")),
              parse),
      "entries");
}

/// Many boxes with what DCP_SHARDING_INFO says of each.
TEST(SafetensorsBounds, ShardingInfoOfManyTensors) {
  constexpr std::size_t count = 100'000;
  std::string const info = joined(
      "{", count,
      [](std::size_t i) { return fmt::format(R"("t{}":{{"saved_offsets":[{}]}})", i, i); }, "}");
  ScratchFolder const folder("bounds_boxes");
  std::string const header = joined(
      fmt::format(R"({{"__metadata__":{{"DCP_SHARDING_INFO":{}}},)", Json(info).dump()), count,
      [](std::size_t i) {
        return fmt::format(R"("t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i, i,
                           i + 1);
      },
      "}");
  write_text_file(folder.path() / "x.safetensors", file_of(header) + std::string(count, 'x'));
  EXPECT_EQ(within_bounds("DCP_SHARDING_INFO of 100k boxes", header.size(),
                          [&] {
                            Checkpoint const checkpoint =
                                dcp::boxed_safetensors().open(folder.path(), {}, LoneReader());
                            EXPECT_EQ(checkpoint.stored.tensors.size(), count);
                            EXPECT_EQ(checkpoint.stored.tensors.back().shape,
                                      std::vector<Index>{100'000});
                          }),
            "");
}

TEST(HuggingFaceBounds, ALargeIndex) {
  ScratchFolder const folder("bounds_index");
  write_text_file(folder.path() / "a.safetensors", "x");
  auto const entry = [](std::size_t i) {
    return fmt::format("\"layers.{}.weight\":\"a.safetensors\"", i);
  };
  std::string const index = joined("{\"weight_map\":{", 500'000, entry, "}}");
  write_text_file(folder.path() / huggingface::index_name, index);
  huggingface::Folder opened;
  EXPECT_EQ(within_bounds("an index of 500k tensors", index.size(),
                          [&] { opened = huggingface::open_folder(folder.path()); }),
            "");
  safetensors::Header header;
  header.tensors.push_back({"layers.0.weight", DType::u8, {1}, {}, 0, 1});
  expect_refused(
      within_bounds(
          "their check", index.size(),
          [&] { static_cast<void>(huggingface::check_against_index(opened, 0, header)); }),
      "499999 of the 500000");
}

TEST(HuggingFaceBounds, AnIndexOfManyFilesThatAreNotThere) {
  ScratchFolder const folder("bounds_files");
  auto const entry = [](std::size_t i) { return fmt::format("\"t{}\":\"{}.safetensors\"", i, i); };
  std::string const index = joined("{\"weight_map\":{", 200'000, entry, "}}");
  write_text_file(folder.path() / huggingface::index_name, index);
  expect_refused(within_bounds("an index of 200k files", index.size(),
                               [&] { static_cast<void>(huggingface::open_folder(folder.path())); }),
                 "200000 of the 200000 files");
}

}  // namespace
}  // namespace reshard
