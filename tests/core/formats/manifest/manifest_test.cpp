#include "core/formats/manifest/manifest.hpp"

#include <algorithm>
#include <chrono>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

std::vector<TensorDigest> two_tensors() {
  return {
      {.name = "word \"x\"", .dtype = "f32", .shape = {}, .axes = {}, .crc64 = 0xffffffffffffffffU},
      {.name = "decoder.norm",
       .dtype = "bf16",
       .shape = {2, 64},
       .axes = {"layer", "hidden"},
       .crc64 = 0xff,
       .add = -1}};
}

Manifest small_manifest() {
  Manifest manifest;
  manifest.tool_version = "0.9.0";
  manifest.format = "torch_dist";
  manifest.map = "gpt";
  manifest.source.set("path", "/data/in")
      .set("ranks", 8)
      .set("notes", Json(Json::Array{"a\nb", nullptr, true, 1.5}));
  manifest.job.set("source", Json(Json::Object{{"path", "/data/in"}}));
  manifest.tensors = two_tensors();
  manifest.objects = {
      {.name = "rng_state/shard_0_1", .dtype = {}, .shape = {1}, .axes = {}, .crc64 = 5}};
  manifest.files = {{"__0_0.distcp", 1U << 30U, 0x0123456789abcdefU},
                    {"tokenizer/vocab \u00e9.json", 0, 0}};
  manifest.total = total_digest(manifest.tensors);
  return manifest;
}

TEST(Manifest, SumsOfBlocksComeBack) {
  Manifest manifest = small_manifest();
  EXPECT_EQ(manifest_text(manifest).find("block"), std::string::npos);
  manifest.block_bytes = 1 << 20;
  manifest.blocks = {{"a/__0_0.distcp", "2026-11-26T02:00:00Z", {0, 1, UINT64_MAX}},
                     {"__1_0.distcp", "", {}}};
  std::string const text = manifest_text(manifest);
  EXPECT_EQ(parse_manifest(text, "reshard.json"), manifest);
  for (auto const& [member, other] :
       {std::pair("\"block_bytes\": 1048576", "\"block_bytes\": 0"),
        std::pair("\"verified\": \"\"", "\"verified\": 1"), std::pair("0001ff", "001ff"),
        std::pair("a/__0_0.distcp", "../__0_0.distcp")}) {
    std::string damaged = text;
    std::size_t const at = damaged.find(member);
    ASSERT_NE(at, std::string::npos) << text;
    damaged.replace(at, std::string_view(member).size(), other);
    EXPECT_THROW(parse_manifest(damaged, "reshard.json"), Error) << member;
  }
}

TEST(Manifest, StampsOfFilesComeBack) {
  Manifest manifest = small_manifest();
  std::string const without = manifest_text(manifest);
  EXPECT_EQ(without.find("stamps"), std::string::npos);
  manifest.stamps = {
      {"__0_0.distcp", {.bytes = 1 << 30, .mtime_ns = -5, .ctime_ns = 6, .inode = 7}},
      {"__1_0.distcp", {.bytes = 0, .mtime_ns = 5, .ctime_ns = 0, .inode = 1}}};
  std::string const text = manifest_text(manifest);
  EXPECT_EQ(parse_manifest(text, "reshard.json"), manifest);
  for (char const* member : {"\"mtime_ns\": -5", "\"inode\": 7"}) {
    std::string damaged = text;
    std::size_t const at = damaged.find(member);
    ASSERT_NE(at, std::string::npos) << text;
    damaged.replace(at, std::string_view(member).size(), "\"other\": 1");
    EXPECT_THROW(parse_manifest(damaged, "reshard.json"), Error) << member;
  }
}

TEST(Hex64, HasSixteenDigits) {
  EXPECT_EQ(hex64(0xabc), "0000000000000abc");
  EXPECT_EQ(parse_hex64("fedcba9876543210"), 0xfedcba9876543210U);
  for (char const* bad : {"", "fedcba987654321", "fedcba98765432100", "FEDCBA9876543210",
                          "+edcba9876543210", "fedcba987654321 "})
    EXPECT_FALSE(parse_hex64(bad)) << bad;
}

TEST(TotalDigest, IsTheHashOfItsLines) {
  // printf '"decoder.norm" bf16 [2, 64] 00000000000000ff\n"word \\"x\\"" f32 [] ffffffffffffffff\n'
  // | xxhsum -H2
  EXPECT_EQ(total_digest(two_tensors()), "57c14b14b78bd4847d3784fccaab98fd");
  EXPECT_EQ(total_digest({}), "99aa06d3014798d86001c324468d497f");
}

TEST(TotalDigest, DependsOnEveryTensorButNotOnTheirOrder) {
  auto const tensors = two_tensors();
  std::string const total = total_digest(tensors);
  auto other = tensors;
  std::swap(other[0], other[1]);
  EXPECT_EQ(total_digest(other), total);
  for (int change = 0; change < 4; ++change) {
    other = tensors;
    if (change == 0) other[1].crc64 ^= 1;
    if (change == 1) other[1].shape = {64, 2};
    if (change == 2) other[1].dtype = "f16";
    if (change == 3) other[1].name = "decoder.norm ";
    EXPECT_NE(total_digest(other), total) << change;
  }
}

TEST(ManifestText, HasOneLineForEachTensorAndFile) {
  std::string const text = manifest_text(small_manifest());
  EXPECT_TRUE(text.starts_with(
      "{\n  \"reshard\": \"0.9.0\",\n  \"version\": 1,\n  \"format\": \"torch_dist\",\n  \"map\": \"gpt\",\n"))
      << text;
  std::string const tensors =
      "\n  \"tensors\": [\n"
      "    {\"name\": \"word \\\"x\\\"\", \"dtype\": \"f32\", \"shape\": [], \"crc64\": \"ffffffffffffffff\"},\n"
      "    {\"name\": \"decoder.norm\", \"dtype\": \"bf16\", \"shape\": [2, 64], \"axes\": [\"layer\", \"hidden\"], \"crc64\": \"00000000000000ff\", "
      "\"add\": "
      "-1}\n  ],\n";
  EXPECT_NE(text.find(tensors), std::string::npos) << text;
  EXPECT_NE(text.find("\n  \"source\": {\n    \"path\": \"/data/in\",\n"), std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("\n  ]\n}\n"));
}

TEST(ParseManifest, GivesBackWhatWasWritten) {
  Manifest const manifest = small_manifest();
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "f"), manifest);
  Manifest empty;
  empty.total = total_digest({});
  EXPECT_EQ(parse_manifest(manifest_text(empty), "f"), empty);
}

void expect_refused(std::string const& text, std::string_view said) {
  try {
    (void)parse_manifest(text, "x/reshard.json");
    ADD_FAILURE() << said << " was accepted:\n" << text;
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_TRUE(error.sentence().starts_with("x/reshard.json: ")) << error.sentence();
    EXPECT_NE(error.sentence().find(said), std::string::npos) << error.sentence();
  }
}

/// The small manifest with one text in the place of another.
std::string changed(std::string const& from, std::string const& to) {
  std::string text = manifest_text(small_manifest());
  std::size_t const at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ParseManifest, RefusesWrongMembers) {
  expect_refused("", "JSON");
  expect_refused("[]", "reshard");
  expect_refused(changed("\"version\": 1", "\"version\": 2"), "version 2");
  expect_refused(changed("\"format\": \"torch_dist\"", "\"format\": 7"),
                 "\"format\" is 7, a string");
  for (char const* member :
       {"reshard", "version", "format", "total", "source", "job", "tensors", "objects", "files"})
    expect_refused(changed(fmt::format("\"{}\": ", member), "\"other\": "), member);
  expect_refused(changed("\"name\": \"decoder.norm\"", "\"name\": \"\""), "tensors[1].\"name\"");
  expect_refused(changed("\"name\": \"decoder.norm\"", "\"name\": \"word \\\"x\\\"\""),
                 "listed before");
  expect_refused(changed("\"dtype\": \"f32\", ", ""), "\"dtype\" is missing");
  expect_refused(changed("[2, 64]", "[2, -64]"), "\"shape\"");
  expect_refused(changed("[2, 64]", "[2, 64.0]"), "\"shape\"");
  expect_refused(changed("[2, 64]", "[4611686018427387904, 64]"), "64 bits");
  expect_refused(changed("[2, 64]", "[2, 18446744073709551615]"), "\"shape\"");
  expect_refused(changed("[\"layer\", \"hidden\"]", "[\"layer\"]"), "2 names");
  expect_refused(changed("[\"layer\", \"hidden\"]", "[\"layer\", 7]"), "a list of names");
  expect_refused(changed("00000000000000ff", "0xff"), "\"crc64\"");
  expect_refused(changed("\"add\": -1", "\"add\": 4294967296"), "\"add\"");
  expect_refused(changed("\"size_bytes\": 0", "\"size_bytes\": -1"), "\"size_bytes\"");
  expect_refused(changed("\"size_bytes\": 0", "\"size_bytes\": 1e300"), "\"size_bytes\"");
  expect_refused(changed("\"size_bytes\": 0", "\"size_bytes\": 99999999999999999999"), "");
}

TEST(ParseManifest, RefusesPathsThatLeaveTheCheckpoint) {
  for (char const* path : {"", "/etc/passwd", "..", "a/../../b", "a//b", "a/", "./a", "a\\nb",
                           "a\\u0000", "reshard.json"})
    expect_refused(changed("__0_0.distcp", path), "files[0].\"path\"");
  expect_refused(changed("__0_0.distcp", "tokenizer/vocab \u00e9.json"), "listed before");
}

TEST(ParseManifest, RefusesATotalThatIsNotThatOfItsTensors) {
  expect_refused(changed("00000000000000ff", "00000000000000fe"), "total is");
  expect_refused(changed("\"dtype\": \"f32\"", "\"dtype\": \"f16\""), "total is");
}

TEST(ParseManifest, AnyCutOrChangedByteIsAnErrorOrAManifest) {
  std::string const text = manifest_text(small_manifest());
  std::mt19937_64 random(3);
  int refused = 0;
  for (std::size_t cut = 0; cut + 2 < text.size(); ++cut)
    EXPECT_THROW((void)parse_manifest(text.substr(0, cut), "f"), Error) << cut;
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(random());
    try {
      (void)parse_manifest(damaged, "f");
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(text.size() / 2));
}

TEST(FindManifest, LooksInTheFolder) {
  ScratchFolder const folder("manifest");
  EXPECT_FALSE(find_manifest(folder.path()));
  EXPECT_FALSE(find_manifest(folder.path() / "missing"));
  write_text_file(folder.path() / manifest_name, manifest_text(small_manifest()));
  EXPECT_EQ(find_manifest(folder.path()), small_manifest());
  write_text_file(folder.path() / manifest_name, "{}");
  EXPECT_THROW((void)find_manifest(folder.path()), Error);
}

TEST(Manifest, OfALargeModelIsQuick) {
  Manifest manifest = small_manifest();
  manifest.tensors.clear();
  for (int i = 0; i < 91000; ++i)
    manifest.tensors.push_back(
        {.name = fmt::format("decoder.layers.{}.mlp.experts.{}.linear_fc{}.weight", i / 1500,
                             i % 1500, i % 2 + 1),
         .dtype = "bf16",
         .shape = {4096, 7168},
         .axes = {"moe_inter", "hidden"},
         .crc64 = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15U});
  auto const begin = std::chrono::steady_clock::now();
  manifest.total = total_digest(manifest.tensors);
  std::string const text = manifest_text(manifest);
  auto const made = std::chrono::steady_clock::now();
  Manifest const read = parse_manifest(text, "f");
  auto const end = std::chrono::steady_clock::now();
  EXPECT_EQ(read, manifest);
  RecordProperty("make_ms",
                 static_cast<int>(std::chrono::duration<double, std::milli>(made - begin).count()));
  RecordProperty("parse_ms",
                 static_cast<int>(std::chrono::duration<double, std::milli>(end - made).count()));
  EXPECT_LT(end - begin, std::chrono::seconds(10)) << "it takes a few tenths of a second";
}

}  // namespace
}  // namespace reshard
