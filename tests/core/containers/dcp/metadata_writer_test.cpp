#include <gtest/gtest.h>

#include "tests/support/dcp_metadata.hpp"
#include "tests/support/dcp_pickle.hpp"

namespace reshard {
namespace {

using dcp::Metadata;
using dcp::MetadataStyle;

/// The example of docs/formats/dcp.md, 812 bytes with SHA-256
/// 7e8358c60ac81f439cdf6b8c0cec4fe5f97b07c00136f6972b4d18bb2f2bcd90.
std::string golden_bytes() {
  using namespace raw;
  auto const short_number = [](int value) {
    return "K" + std::string(1, static_cast<char>(value));
  };
  auto const short_size = [&](int a, int b) {
    return call(global("torch", "Size"), tuple({short_number(a), short_number(b)}) + "\x85");
  };
  std::string const format =
      call(global(metadata_module, "_MEM_FORMAT_ENCODING"), short_number(0) + "\x85");
  std::string const values =
      tuple({torch_dtype("bfloat16"), layout("torch.strided"), "\x89", format, "\x89"});
  std::string const entry = tensor(properties(values), short_size(2, 3),
                                   list({chunk(short_size(0, 0), short_size(2, 3))}));
  std::string const key = object(metadata_module, "MetadataIndex",
                                 dict({text("fqn"), text("w"), text("index"), short_number(0),
                                       text("offset"), short_size(0, 0)}));
  std::string const place =
      object(filesystem_module, "_StorageInfo",
             dict({text("relative_path"), text("__0_0.distcp"), text("offset"), short_number(0),
                   text("length"), "M\x29\x06"}));
  return file_of(
      object(metadata_module, "Metadata",
             dict({text("state_dict_metadata"), dict({text("w"), entry}), text("planner_data"),
                   dict({text("w"), tuple({text("w")})}), text("storage_data"), dict({key, place}),
                   text("storage_meta"), "N"})));
}

Metadata mixed_metadata() {
  Metadata metadata;
  metadata.files = {"__0_0.distcp", "sub/__1_0.distcp", "unused"};
  add_tensor(metadata, "scalar", DType::i64, {});  // first: planner_data names it
  add_chunk(metadata, {}, {}, {.file = 1, .offset_bytes = 70000, .size_bytes = 1});
  add_tensor(metadata, "no chunks", DType::f32, {0});
  add_tensor(metadata, std::string(300, 'n'), DType::f8_e4m3, {5, 1, 1, 1, Index{1} << 40});
  for (Index i = 0; i < 5; ++i)
    add_chunk(metadata, {i, 0, 0, 0, 0}, {1, 1, 1, 1, Index{1} << 40},
              {.file = 0, .offset_bytes = std::uint64_t{1} << (10 * i), .size_bytes = 300});
  metadata.objects = {{.name = "o", .item = {.file = 0, .offset_bytes = 1, .size_bytes = 2}},
                      {.name = "p", .item = {.file = 1, .offset_bytes = 3, .size_bytes = 4}}};
  metadata.planner_data.emplace().emplace_back("o", dcp::Path{"a", std::int64_t{3}, "b", "c"});
  metadata.planner_data->emplace_back("p", dcp::Path{});
  metadata.planner_data->emplace_back("scalar", dcp::Path{std::int64_t{-70000}});
  return metadata;
}

void expect_same(Metadata const& a, Metadata const& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
    EXPECT_EQ(a.tensors[i].dtype, b.tensors[i].dtype);
    EXPECT_EQ(a.tensors[i].shape, b.tensors[i].shape);
    auto const chunks = a.chunks_of(a.tensors[i]);
    auto const others = b.chunks_of(b.tensors[i]);
    ASSERT_EQ(chunks.size(), others.size());
    for (std::size_t j = 0; j < chunks.size(); ++j) {
      EXPECT_TRUE(std::ranges::equal(a.offsets(chunks[j]), b.offsets(others[j])));
      EXPECT_TRUE(std::ranges::equal(a.sizes(chunks[j]), b.sizes(others[j])));
      EXPECT_EQ(chunks[j].item.offset_bytes, others[j].item.offset_bytes);
      EXPECT_EQ(chunks[j].item.size_bytes, others[j].item.size_bytes);
      EXPECT_EQ(a.files[chunks[j].item.file], b.files[others[j].item.file]);
    }
  }
  ASSERT_EQ(a.objects.size(), b.objects.size());
  for (std::size_t i = 0; i < a.objects.size(); ++i) {
    EXPECT_EQ(a.objects[i].name, b.objects[i].name);
    EXPECT_EQ(a.files[a.objects[i].item.file], b.files[b.objects[i].item.file]);
  }
  EXPECT_EQ(a.planner_data, b.planner_data);
}

TEST(WriteMetadata, KeysStandInTheOrderOfPlannerData) {
  Metadata metadata;
  metadata.files = {"f"};
  for (char const* key : {"tensor.a", "tensor.b"}) {
    add_tensor(metadata, key, DType::f32, {1});
    add_chunk(metadata, {0}, {1}, {.file = 0, .offset_bytes = 0, .size_bytes = 1});
  }
  metadata.objects = {
      {.name = "object.c", .item = {.file = 0, .offset_bytes = 0, .size_bytes = 1}}};
  metadata.planner_data.emplace();
  for (char const* key : {"object.c", "tensor.b"})
    metadata.planner_data->emplace_back(key, dcp::Path{std::string(key)});
  std::string const bytes = dcp::write_metadata(metadata);
  EXPECT_LT(bytes.find("object.c"), bytes.find("tensor.b"));
  EXPECT_LT(bytes.find("tensor.b"), bytes.find("tensor.a"));
}

TEST(WriteMetadata, ThePlainExampleIsTheKnownBytes) {
  std::string const bytes = dcp::write_metadata(golden_metadata(), MetadataStyle::plain);
  EXPECT_EQ(bytes.size(), 812U);
  EXPECT_EQ(bytes, golden_bytes());
}

TEST(WriteMetadata, BothStylesAreReadBackAsTheyWere) {
  for (auto const style : {MetadataStyle::plain, MetadataStyle::compact}) {
    expect_same(raw::read(dcp::write_metadata(mixed_metadata(), style)), mixed_metadata());
    expect_same(raw::read(dcp::write_metadata(banded_metadata(7, 301), style)),
                banded_metadata(7, 301));
  }
}

TEST(WriteMetadata, NothingAtAllIsReadBack) {
  Metadata const metadata = raw::read(dcp::write_metadata({}));
  EXPECT_TRUE(metadata.tensors.empty());
  ASSERT_TRUE(metadata.planner_data) << "None is written as an empty dict";
  EXPECT_TRUE(metadata.planner_data->empty());
}

TEST(WriteMetadata, EqualMetadataGivesEqualBytes) {
  for (auto const style : {MetadataStyle::plain, MetadataStyle::compact}) {
    EXPECT_EQ(dcp::write_metadata(mixed_metadata(), style),
              dcp::write_metadata(mixed_metadata(), style));
    std::string const bytes = dcp::write_metadata(banded_metadata(3, 70), style);
    EXPECT_EQ(dcp::write_metadata(raw::read(bytes), style), bytes);
  }
}

TEST(WriteMetadata, CompactTakesLessThan95BytesPerChunk) {
  struct Case {
    std::uint32_t names;
    std::uint32_t chunks;
  };
  for (Case const& at : {Case{300, 64}, Case{300, 1000}, Case{1000, 64}}) {
    double const bytes =
        static_cast<double>(dcp::write_metadata(banded_metadata(at.names, at.chunks)).size());
    EXPECT_LT(bytes / at.names / at.chunks, 95)
        << at.names << " names, " << at.chunks << " chunks each";
  }
}

/// The largest number of values between a mark and the opcode that takes them, by a reading that
/// knows only the opcodes of the plain style.
std::size_t most_values_above_a_mark(std::string_view bytes) {
  std::vector<std::size_t> marks;
  std::size_t most = 0;
  std::size_t depth = 0;
  for (std::size_t at = 2; at < bytes.size(); ++at) switch (static_cast<unsigned char>(bytes[at])) {
      case 0x8c: at += std::size_t{1} + static_cast<unsigned char>(bytes[at + 1]), ++depth; break;
      case 'K': at += 1, ++depth; break;
      case 'M': at += 2, ++depth; break;
      case 'J': at += 4, ++depth; break;
      case 0x8a: at += std::size_t{1} + static_cast<unsigned char>(bytes[at + 1]), ++depth; break;
      case '(': marks.push_back(depth); break;
      case 'N':
      case ')':
      case '}':
      case ']':
      case 0x89: ++depth; break;
      case 0x93:
      case 0x81:
      case 'R':
      case 'b': --depth; break;
      case 't':
      case 'u':
      case 'e':
        most = std::max(most, depth - marks.back());
        depth = marks.back() + (bytes[at] == 't' ? 1 : 0);
        marks.pop_back();
        break;
      default: break;
    }
  return most;
}

TEST(WriteMetadata, BatchesHoldAtMostThousandEntries) {
  EXPECT_EQ(
      most_values_above_a_mark(dcp::write_metadata(banded_metadata(1, 2500), MetadataStyle::plain)),
      2000U);
  EXPECT_EQ(
      most_values_above_a_mark(dcp::write_metadata(banded_metadata(1001, 1), MetadataStyle::plain)),
      2000U);
  expect_same(raw::read(dcp::write_metadata(banded_metadata(1, 2000))), banded_metadata(1, 2000));
}

TEST(WriteMetadata, RefusesATypeThatTorchLacks) {
  Metadata metadata;
  add_tensor(metadata, "w", DType::f6_e2m3, {8});
  EXPECT_THROW(dcp::write_metadata(metadata), Error);
}

}  // namespace
}  // namespace reshard
