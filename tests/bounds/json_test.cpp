#include "core/base/text/json.hpp"

#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "tests/bounds/bounds.hpp"

namespace reshard {
namespace {

void parse_any(std::string const& text) { static_cast<void>(parse_json(text, "x.json")); }
std::string number_key(std::size_t i) { return fmt::format("\"k{:07}\"", i); }

TEST(JsonBounds, PunctuationDoesNotFillTheMemory) {
  expect_refused(bounded("8M numbers",
                         joined(
                             "[", 8'000'000, [](std::size_t) { return "0"; }, "]"),
                         parse_any),
                 "a valid document has fewer");
  expect_refused(bounded("4M empty arrays",
                         joined(
                             "[", 4'000'000, [](std::size_t) { return "[]"; }, "]"),
                         parse_any),
                 "a valid document has fewer");
  EXPECT_EQ(bounded("200k numbers",
                    joined(
                        "[", 200'000, [](std::size_t) { return "0"; }, "]"),
                    parse_any),
            "");
}

TEST(JsonBounds, ManyMembersAreReadAndDuplicatesFound) {
  auto const member = [](std::size_t i) { return number_key(i) + ":0"; };
  EXPECT_EQ(bounded("1M members", joined("{", 1'000'000, member, "}"), parse_any), "");
  expect_refused(bounded("1M equal keys",
                         joined(
                             "{", 1'000'000, [](std::size_t) { return "\"a\":0"; }, "}"),
                         parse_any),
                 "appears twice");
  expect_refused(bounded("one duplicate at the end",
                         joined("{", 1'000'000, member, ",\"k0000000\":0}"), parse_any),
                 "appears twice");
  std::string const prefix(1000, 'x');
  EXPECT_EQ(
      bounded("keys with a long common beginning",
              joined(
                  "{", 50'000,
                  [&](std::size_t i) { return fmt::format("\"{}{:05}\":0", prefix, i); }, "}"),
              parse_any),
      "");
}

TEST(JsonBounds, DepthIsBounded) {
  expect_refused(bounded("1M brackets", std::string(1'000'000, '['), parse_any), "x.json");
  expect_refused(bounded("1M brackets, closed",
                         std::string(1'000'000, '[') + std::string(1'000'000, ']'), parse_any),
                 "x.json");
  expect_refused(
      bounded("1M objects in each other",
              repeated("{\"a\":", 1'000'000) + "0" + std::string(1'000'000, '}'), parse_any),
      "x.json");
  expect_refused(bounded("65 levels", std::string(66, '[') + std::string(66, ']'), parse_any),
                 "deeper than 64");
}

TEST(JsonBounds, LongTextsAreRead) {
  EXPECT_EQ(bounded("one long text", "[\"" + std::string(32'000'000, 'x') + "\"]", parse_any), "");
  EXPECT_EQ(bounded("escapes", "[\"" + repeated("\\u00e9", 2'000'000) + "\"]", parse_any), "");
}

TEST(ConfigBounds, PatchesOfAVeryLargeConfigAreCheap) {
  std::string const config = joined(
      "{", 1'000'000, [](std::size_t i) { return number_key(i) + ":0"; }, "}");
  std::vector<huggingface::ConfigPatch> const patches = {{{"k0999999"}, Json(1)},
                                                         {{"absent", "inner"}, Json(1)},
                                                         {{"k0000000"}, std::nullopt},
                                                         {{"k0500000"}, Json("x")}};
  EXPECT_EQ(bounded("a config of 1M members", config,
                    [](std::string const& text) {
                      static_cast<void>(huggingface::parse_config(text, "config.json"));
                    }),
            "");
  EXPECT_EQ(
      bounded("patches of 1M members", config,
              [&](std::string const& text) {
                static_cast<void>(huggingface::patched_config_text(text, patches, "config.json"));
              }),
      "");
}

std::string manifest_of(std::size_t tensors, std::size_t files, bool same_names) {
  auto const tensor = [&](std::size_t i) {
    return fmt::format(
        R"({{"name":"t{}","dtype":"bf16","shape":[2,3],"axes":["a","b"],"crc64":"00000000000000ff"}})",
        same_names ? 0 : i);
  };
  auto const file = [&](std::size_t i) {
    return fmt::format(R"({{"path":"f{}","size_bytes":1,"xxh3":"00000000000000ff"}})", i);
  };
  return R"({"reshard":"0","version":1,"format":"dcp","total":"0","source":{},"job":{},)" +
         joined("\"tensors\":[", tensors, tensor, "],") + "\"objects\":[]," +
         joined("\"files\":[", files, file, "]}");
}

TEST(ManifestBounds, ManyTensorsAndFilesAreReadInTime) {
  auto const parse = [](std::string const& text) {
    static_cast<void>(parse_manifest(text, "reshard.json"));
  };
  expect_refused(bounded("reshard.json, 200k tensors", manifest_of(200'000, 200'000, false), parse),
                 "total is");
  expect_refused(bounded("reshard.json, equal names", manifest_of(200'000, 0, true), parse),
                 "is listed before");
}

TEST(ManifestBounds, ALongIntegrityListIsReadInTime) {
  auto const parse = [](std::string const& text) {
    static_cast<void>(parse_integrity(text, "integrity.json"));
  };
  auto const entry = [](std::size_t i) {
    return fmt::format("\"f{}\":\"{}\"", i, std::string(64, '0'));
  };
  EXPECT_EQ(
      bounded("integrity.json, 300k files", joined("{\"files\":{", 300'000, entry, "}}"), parse),
      "");
  expect_refused(bounded("integrity.json, a wrong digest at the end",
                         joined("{\"files\":{", 300'000, entry, ",\"g\":\"x\"}}"), parse),
                 "64 lower-case");
}

}  // namespace
}  // namespace reshard
